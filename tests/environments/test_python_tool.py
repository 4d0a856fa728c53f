"""The tool `python`: a program's output comes back, and no program hangs, harms or fills its host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.state import Action
from llenvs_fast.core.tools import ToolCall, ToolResult
from llenvs_fast.environments.sandbox import SandboxPool
from llenvs_fast.environments.tools import Tool, ToolEnvironment, python, python_tool
from tests.worlds import EchoWorld

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")


@pytest.fixture(scope="module")
def tool() -> Iterator[Tool]:
    tool = python()
    yield tool
    assert tool.close is not None
    tool.close()


def run(tool: Tool, *codes: str) -> list[ToolResult]:
    return tool.call_batch([ToolCall(f"call_{i}", "python", {"code": code}) for i, code in enumerate(codes)])


def output(tool: Tool, code: str) -> str:
    (result,) = run(tool, code)
    assert result.is_success, result
    return str(result.output)


# what comes back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print(2 + 3)", "5"),
        ("2 + 3", "5"),
        ("print('a')\n'b'", "a\n'b'"),
        ("x = 2", ""),
        ("None", ""),
        ("print('a', end='')", "a"),
        ("", ""),
        ("print('one')\n1/0", "one\nZeroDivisionError: division by zero"),
        ("x =", "SyntaxError: invalid syntax"),
        ("y", "NameError: name 'y' is not defined"),
        ("raise ValueError", "ValueError"),
        ("class E(Exception):\n  def __str__(self): raise self\nraise E", "E: <exception str() failed>"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("print(1)\nexit()\nprint(2)", "1"),
        ("input()", "EOFError: EOF when reading a line"),
        ("print('\\ud800')", "?"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("if __name__ == '__main__': print('main')", "main"),
        ("import pandas_of_nobody", "ModuleNotFoundError: No module named 'pandas_of_nobody'"),
        ("try:\n  import nothing\nexcept ImportError:\n  print('went on')", "went on"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\nA(3)", "A(x=3)"),
        ("import math, itertools, fractions\nfractions.Fraction(6, 4) + math.factorial(3)", "Fraction(15, 2)"),
        ("from datetime import datetime\ndatetime.strptime('2024-02-29', '%Y-%m-%d').strftime('%A')", "'Thursday'"),
    ],
)
def test_a_program_is_run_and_what_it_prints_comes_back(tool: Tool, code: str, printed: str) -> None:
    assert output(tool, code) == printed


SYMPY = [
    ("x**2 - 2, x", "solve({})", "[-sqrt(2), sqrt(2)]"),
    ("x*sin(x), x", "integrate({})", "-x*cos(x) + sin(x)"),
    ("exp(-x**2), (x, -oo, oo)", "integrate({})", "sqrt(pi)"),
    ("sin(x)/x, x, 0", "limit({})", "1"),
    ("1/x**2, (x, 1, oo)", "summation({})", "pi**2/6"),
    ("x**2 < 4", "solve({})", "(-2 < x) & (x < 2)"),
    ("[[1, 2], [3, 4]]", "Matrix({}).det()", "-2"),
    ("360", "factorint({})", "{2: 3, 3: 2, 5: 1}"),
    ("x**4 - 1", "factor({})", "(x - 1)*(x + 1)*(x**2 + 1)"),
]


@pytest.mark.parametrize(("arguments", "function", "value"), SYMPY)
def test_sympy_works_without_reading_files(tool: Tool, arguments: str, function: str, value: str) -> None:
    pytest.importorskip("sympy")
    assert output(tool, f"from sympy import *\nx = symbols('x')\nprint({function.format(arguments)})") == value


def test_numpy_works_and_random_numbers_are_the_same_in_every_call(tool: Tool) -> None:
    code = "import random\nimport numpy as np\nprint(random.random(), np.random.rand(), np.linalg.det(np.eye(3)))"
    first, *others = (result.output for result in run(tool, *[code] * 8))
    assert str(first).endswith(" 1.0")
    assert others == [first] * 7


def test_long_output_is_cut_and_says_so_and_the_error_after_it_stays(tool: Tool) -> None:
    printed = output(tool, "print('ä' * 9_999)\nprint('bcdef')\nraise ValueError('after all')")
    assert printed == "ä" * 9_999 + "\n[cut: 6 more characters]\nValueError: after all"
    assert len(output(tool, "raise ValueError('x' * 10**6)")) < 1100


def test_a_program_that_is_too_long_is_not_run_and_costs_its_neighbours_nothing(tool: Tool) -> None:
    long, short = run(tool, "1;" * 25_001, "2")
    assert long.error == "the code has 50,002 characters: give at most 50,000"
    assert short.output == "2"


# what must not happen ------------------------------------------------------------------------------------------------

ENDLESS = [
    "print('begun')\nwhile True: pass",
    "print('begun')\nimport time\ntime.sleep(1000)",
    "print('begun')\nwhile True: print('x' * 10**6)",
    "print('begun')\n9**9**9",
    "print('begun')\nimport re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
    "print('begun')\nimport signal\nfor s in (1, 2, 6, 15, 24, 25): signal.signal(s, signal.SIG_IGN)\nwhile True: 0",
]


def test_what_does_not_end_is_ended_and_what_it_printed_is_kept(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_tool, "TIMEOUT_S", 0.7)
    *ended, after = run(tool, *ENDLESS, "1 + 1")
    assert after.output == "2"
    for result in ended:
        assert (result.error or "").startswith("the code did not end in 5 s; it had printed:\nbegun")
        assert len(result.error or "") < 10_100


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\nos._exit(3)", "crashed its interpreter or ended it"),
        ("import os\nos.abort()", "crashed its interpreter or ended it"),
        ("import ctypes\nctypes.string_at(0)", "crashed its interpreter or ended it"),
        ("import os\nfor fd in range(10): os.close(fd)", "crashed its interpreter or ended it"),
        ('import os\nos.write(3, b\'["value", "mine", "", ""]\\n\' * 10**5)', "crashed its interpreter or ended it"),
        ("bytearray(2**40)", "MemoryError"),
        ("a = []\nwhile True: a.append(bytearray(2**26))", "MemoryError"),
        ("import gc, mmap\nfor m in gc.get_objects():\n  if isinstance(m, mmap.mmap): m[:] = b'\\xff' * len(m)", "cut"),
    ],
)
def test_what_a_program_breaks_is_its_own(tool: Tool, code: str, message: str) -> None:
    broken, after = run(tool, code, "1 + 1")
    assert message in (broken.error or str(broken.output))
    assert len(broken.error or str(broken.output)) < 12_000
    assert after.output == "2"


HARM = [
    "open({victim!r}).read()",
    "open('/etc/passwd').read()",
    "open('/proc/%d/environ' % os.getppid(), 'rb').read()",
    "open({canary!r}, 'w')",
    "os.open({canary!r}, os.O_CREAT | os.O_RDWR)",
    "os.remove({victim!r})",
    "os.rename({victim!r}, {canary!r})",
    "os.truncate({victim!r}, 0)",
    "os.mkdir({canary!r})",
    "os.symlink({victim!r}, {canary!r})",
    "os.chmod({victim!r}, 0)",
    "os.listdir('/')",
    "os.stat({victim!r})",
    "os.kill(os.getppid(), 9)",
    "os.kill(-1, 9)",
    "os.fork()",
    "while True: os.fork()",
    "os.posix_spawn('/bin/touch', ['touch', {canary!r}], {{}})",
    "os.execv('/bin/touch', ['touch', {canary!r}])",
    "os.setsid()",
    "os.nice(-5)",
    "os.sched_setaffinity(0, {{0}})",
    "os.memfd_create('x')",
    "os.pipe()",
    "import _socket; _socket.socket()",
    "import subprocess; subprocess.run(['touch', {canary!r}])",
]


def test_the_kernel_refuses_all_but_computing(tool: Tool, tmp_path: Path) -> None:
    canary, victim = tmp_path / "canary", tmp_path / "victim"
    victim.write_text("whole")
    codes = ["import os\n" + code.format(canary=str(canary), victim=str(victim)) for code in HARM]
    for code, result in zip(codes, run(tool, *codes), strict=True):
        assert "PermissionError: [Errno 1]" in str(result.output) or "ModuleNotFound" in str(result.output), code
    (threads,) = run(tool, "import threading\nthreading.Thread(target=print).start()")
    assert threads.output == "RuntimeError: can't start new thread"
    assert output(tool, f"import os\nos.system('touch {canary}') == 0") == "False"
    assert not canary.exists()
    assert victim.read_text() == "whole"
    assert victim.stat().st_mode & 0o400


# What a program does that goes past Python, straight to the C library: all of it returns -1.
NATIVE = """
import ctypes
libc = ctypes.CDLL(None)
p = ctypes.create_string_buffer
print([
    libc.open(p({victim!r}), 0), libc.open(p({canary!r}), 0o102, 0o600), libc.unlink(p({victim!r})), libc.fork(),
    libc.vfork(), libc.kill({pid}, 9), libc.socket(2, 1, 0), libc.socketpair(1, 1, 0, p(16)),
    libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.memfd_create(p(b'x'), 0), libc.execv(p(b'/bin/true'), 0),
    libc.ptrace(16, {pid}, 0, 0), libc.prctl(4, 1, 0, 0, 0), libc.setpriority(0, 0, 5), libc.mount(0, 0, 0, 0, 0),
    libc.unshare(0x10000000), libc.syscall(425, 1, p(256)), libc.syscall(437, -100, p({canary!r}), p(24), 24),
    libc.syscall(435, p(88), 88),
])
"""


def test_native_code_gets_no_further(tool: Tool, tmp_path: Path) -> None:
    canary, victim = tmp_path / "canary", tmp_path / "victim"
    victim.write_text("whole")
    code = NATIVE.format(canary=os.fsencode(canary), victim=os.fsencode(victim), pid=os.getpid())
    assert output(tool, code) == str([-1] * 20)
    assert victim.read_text() == "whole"
    assert not canary.exists()


def test_programs_see_no_variables_and_nothing_of_each_other(tool: Tool) -> None:
    assert output(tool, "import os\ndict(os.environ)") == "{}"
    leave = "import builtins, math\nbuiltins.left = math.left = 1\nprint('left')"
    look = "import builtins, math\nprint(hasattr(builtins, 'left'), hasattr(math, 'left'))"
    assert [r.output for r in run(tool, *[leave, look] * 4)] == ["left", "False False"] * 4


def test_no_process_is_left_behind(tool: Tool) -> None:
    run(tool, *["1"] * 9)
    workers = psutil.Process().children()
    assert [child for worker in workers for child in worker.children()] == []


def test_an_environment_closes_its_workers() -> None:
    before = {child.pid for child in psutil.Process().children()}
    environment = ToolEnvironment(EchoWorld(), [python()])
    state, _ = environment.reset(options={"task_index": 4})
    result = environment.step(state, Action.from_tool_call(ToolCall("call_0", "python", {"code": "print(2 + 2)"})))
    assert result.next_state.observation.messages[-1]["content"] == "4"
    assert {child.pid for child in psutil.Process().children()} - before
    environment.close()
    assert not {child.pid for child in psutil.Process().children()} - before


def test_where_the_kernel_can_not_confine_it_there_is_no_such_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(module: str, **options: object) -> SandboxPool:
        return SandboxPool("tests.environments.python_without_kernel")

    monkeypatch.setattr(python_tool, "SandboxPool", weak)
    with pytest.raises(InvalidSettingError, match=r"can't run here: .*no seccomp filter.*it needs Linux with seccomp"):
        python()
