"""Kernels work wherever Python does. Each case is a fresh process, since a process compiles a kernel once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "llenvs_fast"
ANSWER = "pass_at_k([4, 2], [1, 1], [1, 2]).tolist() == [[0.25, 0.5], [0.5, 1.0]]"


def run(program: str, cwd: Path, **environment: str) -> None:
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    defaults = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    libraries = f"import sys; sys.path += {sys.path!r}\n"  # -S: an editable install would come before PYTHONPATH
    done = subprocess.run(
        [sys.executable, "-S", "-c", libraries + textwrap.dedent(program)],
        env=inherited | defaults | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package in an archive: there can be no cache beside the code."""
    path = tmp_path_factory.mktemp("site") / "site.zip"
    with zipfile.ZipFile(path, "w") as file:
        for source in [PACKAGE / "__init__.py", *PACKAGE.glob("core/*.py"), *PACKAGE.glob("statistics/*.py")]:
            file.write(source, source.relative_to(PACKAGE.parent))
    return path


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """The package where nobody, not even root, can write a cache beside the code."""
    site = tmp_path / "site"
    for room in ("core", "statistics"):
        shutil.copytree(PACKAGE / room, site / "llenvs_fast" / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", site / "llenvs_fast")
    (site / "llenvs_fast" / "statistics" / "__pycache__").touch()
    return site


def test_importing_statistics_loads_no_numba(tmp_path: Path) -> None:
    run(
        """
        import sys
        import llenvs_fast.statistics
        assert "numba" not in sys.modules
        llenvs_fast.statistics.wilson_interval(1, 2)
        assert "numba" not in sys.modules
        """,
        tmp_path,
    )


def test_the_first_call_compiles(tmp_path: Path) -> None:
    run(
        f"""
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert {ANSWER}
        assert _all_from_kernel.compile() is not _all_from_kernel.function
        """,
        tmp_path,
        NUMBA_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert list((tmp_path / "cache").rglob("*.nbc"))


def test_eight_threads_may_call_first(tmp_path: Path) -> None:
    run(
        f"""
        import threading
        from llenvs_fast.statistics import pass_at_k
        ready, answers = threading.Barrier(8), []
        def ask():
            ready.wait()
            answers.append({ANSWER})
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert answers == [True] * 8
        """,
        tmp_path,
        NUMBA_CACHE_DIR=str(tmp_path),
    )


@pytest.mark.parametrize("first", ["before the fork", "in a thread during the fork", "never"])
def test_kernels_work_after_a_fork(tmp_path: Path, first: str) -> None:
    run(
        f"""
        import os, threading, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
        from llenvs_fast.statistics import pass_at_k
        ask = lambda: {ANSWER}
        if {first!r} == "before the fork":
            ask()
        elif {first!r} == "in a thread during the fork":
            thread = threading.Thread(target=ask)
            thread.start()
            while thread.is_alive() and "numba.core.dispatcher" not in sys.modules:
                time.sleep(0.001)
        child = os.fork()
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        right = ask()
        if child == 0:
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0 and right
        """,
        tmp_path,
        NUMBA_CACHE_DIR=str(tmp_path),
    )


def test_a_sealed_install_without_a_home_caches_in_the_temporary_directory(sealed: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    (tmp_path / "temporary").mkdir()
    run(
        f"""
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        import numba
        assert {str(sealed)!r} in _all_from_kernel.function.__code__.co_filename
        before = numba.config.CACHE_DIR
        assert {ANSWER}
        assert _all_from_kernel.compile() is not _all_from_kernel.function
        assert numba.config.CACHE_DIR == before
        """,
        tmp_path,
        PYTHONPATH=str(sealed),
        HOME=str(blocked),
        XDG_CACHE_HOME=str(blocked),
        TMPDIR=str(tmp_path / "temporary"),
    )
    assert list((tmp_path / "temporary").rglob("*.nbc"))


@pytest.mark.parametrize("site", ["archive", "sealed"])
def test_with_no_place_for_a_cache_kernels_are_compiled_all_the_same(
    site: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    run(
        f"""
        import tempfile
        tempfile.tempdir = {str(blocked)!r}
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert {ANSWER}
        assert _all_from_kernel.compile() is not _all_from_kernel.function
        """,
        tmp_path,
        PYTHONPATH=str(request.getfixturevalue(site)),
        NUMBA_CACHE_DIR=str(blocked),
        HOME=str(blocked),
        XDG_CACHE_HOME=str(blocked),
    )


def test_a_temporary_directory_of_others_is_not_trusted(tmp_path: Path) -> None:
    run(
        """
        import os, tempfile
        from pathlib import Path
        from llenvs_fast.statistics import _jit
        planted = Path(tempfile.gettempdir()) / f"llenvs_fast-numba-{os.geteuid()}"
        planted.mkdir()
        planted.chmod(0o777)
        try:
            _jit._own_temporary_directory()
        except PermissionError as error:
            assert str(planted) in str(error)
        else:
            raise AssertionError("anyone could have put code there")
        """,
        tmp_path,
        TMPDIR=str(tmp_path),
    )


def test_without_numba_kernels_run_as_python(tmp_path: Path) -> None:
    run(
        f"""
        import sys
        sys.modules["numba"] = None
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert {ANSWER}
        assert _all_from_kernel.compile() is _all_from_kernel.function
        """,
        tmp_path,
    )
