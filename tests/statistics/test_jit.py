"""Kernels work wherever Python does. Each case is a fresh process, since a process compiles a kernel once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest

from llenvs_fast.statistics import _jit

PACKAGE = Path(__file__).parents[2] / "llenvs_fast"
# Without this, so little work is left to NumPy.
KERNELS = "from llenvs_fast.statistics import _jit; _jit.SMALL = -1"
ANSWER = "pass_at_k([4, 2], [1, 1], [1, 2]).tolist() == [[0.25, 0.5], [0.5, 1.0]]"


def run(program: str, cwd: Path, expect: str = "", **environment: str) -> None:
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    defaults = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    libraries = f"import sys; sys.path += {sys.path!r}\n"  # -S: an editable install would come before PYTHONPATH
    done = subprocess.run(
        [sys.executable, "-S", "-c", libraries + textwrap.dedent(program)],
        env=inherited | defaults | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert expect in done.stdout, done.stdout[-3000:] + done.stderr


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
        {KERNELS}
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert {ANSWER}
        assert _all_from_kernel._fast not in (None, _all_from_kernel.function)
        """,
        tmp_path,
        NUMBA_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert list((tmp_path / "cache").rglob("*.nbc"))


def test_eight_threads_may_call_first(tmp_path: Path) -> None:
    run(
        f"""
        import threading
        {KERNELS}
        from llenvs_fast.statistics import pass_at_k
        ready, answers = threading.Barrier(8), []
        def ask():
            ready.wait()
            answers.append({ANSWER})
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert answers == [True] * 8
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert _all_from_kernel._fast not in (None, _all_from_kernel.function)
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
        {KERNELS}
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
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        right = ask() and _all_from_kernel._fast not in (None, _all_from_kernel.function)
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
        {KERNELS}
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        import numba
        assert {str(sealed)!r} in _all_from_kernel.function.__code__.co_filename
        before = numba.config.CACHE_DIR
        assert {ANSWER}
        assert _all_from_kernel._fast not in (None, _all_from_kernel.function)
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
        {KERNELS}
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert {ANSWER}
        assert _all_from_kernel._fast not in (None, _all_from_kernel.function)
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


def test_without_numba_numpy_does_the_work_and_kernels_are_python(tmp_path: Path) -> None:
    run(
        f"""
        import sys
        sys.modules["numba"] = None
        {KERNELS}
        from llenvs_fast.statistics import pass_at_k
        from llenvs_fast.statistics.pass_at_k import _all_from_kernel
        assert {ANSWER}
        assert _all_from_kernel._fast is None
        assert _all_from_kernel.compile() is _all_from_kernel.function
        """,
        tmp_path,
    )


def test_small_work_loads_no_numba_and_large_work_does(tmp_path: Path) -> None:
    run(
        f"""
        import sys
        from llenvs_fast.statistics import (
            best_of_k, bootstrap_mean, grouped_quantiles, mean_interval, pass_at_k, wilson_interval
        )
        assert {ANSWER}
        wilson_interval([7] * 10, [10] * 10)
        bootstrap_mean([0.0, 1.0] * 5)
        mean_interval([0.0, 1.0] * 5)
        grouped_quantiles([0.0, 1.0] * 5, [0] * 10, [0.5])
        best_of_k([[0.0, 1.0]] * 10, [1, 2])
        assert not {{"numba", "scipy"}} & set(sys.modules)
        wilson_interval([7] * 600_000, 10)
        assert "numba" in sys.modules
        """,
        tmp_path,
        NUMBA_CACHE_DIR=str(tmp_path),
    )


def test_all_kernels_compile_in_the_background(tmp_path: Path) -> None:
    run(
        f"""
        from llenvs_fast.statistics import _jit, pass_at_k, warm_up
        thread = warm_up()
        _jit.SMALL = -1
        assert {ANSWER}
        thread.join()
        assert len(_jit._kernels) >= 6
        assert all(kernel._fast not in (None, kernel.function) for kernel in _jit._kernels)
        """,
        tmp_path,
        NUMBA_CACHE_DIR=str(tmp_path),
    )


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_chunks_cover_everything_once_and_errors_come_through(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jit, "_cores", lambda: int(threads))
    for n in (0, 1, 5, 100, 1001):
        done = np.zeros(n, dtype=np.int64)

        def count(begin: int, end: int, done: np.ndarray = done) -> None:
            done[begin:end] += 1

        _jit.in_chunks(count, n, 1)
        assert (done == 1).all()

    def fails(begin: int, end: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _jit.in_chunks(fails, 100, 1)


def test_at_the_end_of_the_interpreter_large_work_is_still_done(tmp_path: Path) -> None:
    run(
        """
        import atexit
        import numpy as np
        from llenvs_fast.statistics import _jit, wilson_interval
        _jit._cores = lambda: 2
        def last():
            print(float(wilson_interval(np.full(600_000, 7), 10)[0].max()), flush=True)
        atexit.register(last)
        """,
        tmp_path,
        expect="0.396",
        NUMBA_CACHE_DIR=str(tmp_path),
    )


def test_the_statistics_are_the_same_with_the_jit_off() -> None:
    """Kernels as the Python that they are: what a debugger steps through and coverage counts."""
    files = ("bootstrap", "drawn_from_k", "intervals", "pass_at_k", "quantiles_and_moments")
    paths = [str(Path(__file__).with_name(f"test_{name}.py")) for name in files]
    run(
        f"""
        import pytest
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not covers", *{paths!r}])
        import numba
        assert numba.config.DISABLE_JIT and code == 0
        """,
        PACKAGE.parent,
        expect=" passed",
        NUMBA_DISABLE_JIT="1",
    )
