"""The rules of the house, read off the source: who may import whom, who may import what, how large a room may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "llenvs_fast"

# A room may import the rooms that stand below it: those in later tuples, and none of its own tuple.
FLOORS = (
    ("cli",),
    ("reports", "exports", "trials", "embedded"),
    ("evaluation",),
    ("rollouts",),
    ("engine",),
    ("environments", "inference"),
    ("results",),
    ("statistics", "tokens"),
    ("core",),
    ("_native",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# Packages that only one file each may import: a backend's engine, an environment source's package.
OWNERS = {
    "vllm": "inference/backends/vllm.py",
    "reasoning_gym": "environments/reasoning_gym/worker.py",
    "gem": "environments/gem/worker.py",
}
HEAVY = ("torch", "vllm", "transformers", "numba")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> list[tuple[str, ast.AST]]:
    found: list[tuple[str, ast.AST]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which room it is from"
            found += [(f"{node.module}.{alias.name}", node) for alias in node.names]
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_the_house(path: Path) -> None:
    room = room_of(path)
    if room == "__init__.py":
        return
    assert room in FLOOR, f"{room} is not a room of the house: the design names them"
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] != "llenvs_fast" or len(parts) < 2 or parts[1] in (room, "__version__"):
            continue
        assert parts[1] in FLOOR, f"{path.name} imports {module}, which is no room"
        assert FLOOR[parts[1]] > FLOOR[room], f"{room}/{path.name} imports {module}: imports go down only"


def test_a_heavy_package_has_one_owner() -> None:
    for path in sources():
        for module, _ in imports(path):
            owner = OWNERS.get(module.split(".")[0])
            assert owner in (None, str(path.relative_to(PACKAGE))), f"{path} imports {module}: only {owner} may"


def test_no_attic() -> None:
    names = {p.stem for p in sources()} | {p.name for p in PACKAGE.iterdir() if p.is_dir()}
    assert not names & {"utils", "util", "helpers", "types", "common", "misc"}


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400, f"{path.name} has {text.count(chr(10))} lines: it wants a second room"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1
            assert lines <= 60, f"{path.name}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", [p for p in sources() if p.stat().st_size], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_module_states_its_promise(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


@pytest.mark.parametrize(
    "code",
    [
        "import llenvs_fast",
        "import llenvs_fast.core, llenvs_fast.inference, llenvs_fast.inference.backends, llenvs_fast.evaluation",
        "import llenvs_fast.statistics, llenvs_fast.results.summary",
        "import sys; sys.argv = ['llenvs-fast', '--help']\n"
        "from llenvs_fast.cli.main import cli; cli(standalone_mode=False)",
        "import sys; sys.argv = ['llenvs-fast', 'eval', 'run', '--help']\n"
        "from llenvs_fast.cli.main import cli; cli(standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    check = f"{code}\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("[]"), done.stderr
