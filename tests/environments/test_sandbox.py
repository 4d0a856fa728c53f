"""The sandbox: a call that misbehaves costs itself only, and harm is refused by the kernel and by the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llenvs_fast.environments.sandbox import Call, Limits, SandboxError, SandboxPool, Status

FUNCTIONS = "tests.environments.sandbox_functions"
LIMIT_S = 0.5

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    pool = SandboxPool(FUNCTIONS, workers=2, limits=Limits(memory_bytes=2**29))
    yield pool
    pool.close()


def ends_soon(pid: int) -> bool:
    """Whether a process is gone, or gets there within a bound."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_values_errors_and_odd_values_come_back_as_data(pool: SandboxPool) -> None:
    calls = [
        Call("echo", ({"a": [1, None, "\ud800\0 ü"]},)),
        Call("fail", ("no such thing",)),
        Call("nan"),
        Call("thing"),
        Call("no_such_function"),
    ]
    value, raised, nan, thing, missing = pool.call_batch(calls)
    assert (value.status, value.value) == (Status.VALUE, {"a": [1, None, "\ud800\0 ü"]})
    assert (raised.status, raised.error_type, raised.message) == (Status.RAISED, "KeyError", "'no such thing'")
    assert raised.failure() is None
    assert nan.status is thing.status is Status.BAD_VALUE
    assert nan.failure().kind == "bad_reward"
    assert missing.status is Status.RAISED
    assert "no_such_function" in missing.message


BAD = {
    "loop": "score_timeout",
    "ignore_sigterm": "score_timeout",
    "backtrack": "score_timeout",
    "hold_gil": "score_timeout",
    "endless_after_setup": "score_timeout",
    "bad_setup": "score_crashed",
    "exit_now": "score_crashed",
    "abort": "score_crashed",
    "segfault": "score_crashed",
}


@pytest.mark.parametrize("function", BAD)
def test_one_bad_call_of_64_costs_that_call_only(pool: SandboxPool, function: str) -> None:
    calls = [Call("echo", (i,)) for i in range(63)]
    calls.insert(20, Call(function, timeout_s=LIMIT_S))
    outcomes = pool.call_batch(calls)
    bad = outcomes.pop(20)
    assert [outcome.value for outcome in outcomes] == list(range(63))
    assert bad.failure().kind == BAD[function]
    assert bad.message


def test_a_sleeping_call_is_ended_and_says_its_limit(pool: SandboxPool) -> None:
    outcome = pool.call(Call("sleep", (60,), timeout_s=LIMIT_S))
    assert outcome.status is Status.TIMEOUT
    assert "0.5 s" in outcome.message


@pytest.mark.parametrize("call", [Call("eat_memory"), Call("alone", ("eat_memory",))])
def test_memory_runs_out_for_that_call_only(pool: SandboxPool, call: Call) -> None:
    eaten, after = pool.call_batch([call, Call("echo", (1,))])
    assert eaten.failure().kind == "score_memory"
    assert after.value == 1


def test_a_flood_of_output_reaches_nobody(pool: SandboxPool) -> None:
    assert [outcome.value for outcome in pool.call_batch([Call("flood"), Call("read_input")])] == ["done", ""]


def test_setting_up_has_a_limit_of_its_own(pool: SandboxPool) -> None:
    slow = Call("slow_setup", (2 * LIMIT_S + 0.2,), timeout_s=LIMIT_S)
    stuck = Call("slow_setup", (60,), timeout_s=60, setup_timeout_s=LIMIT_S)
    outcomes = pool.call_batch([slow, stuck])
    assert [outcome.status for outcome in outcomes] == [Status.VALUE, Status.TIMEOUT]


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("loop", Status.TIMEOUT),
        ("hold_gil", Status.TIMEOUT),
        ("exit_now", Status.CRASHED),
        ("segfault", Status.CRASHED),
        ("set_poison", Status.VALUE),
    ],
)
def test_what_an_isolated_call_breaks_breaks_with_its_child(pool: SandboxPool, function: str, status: Status) -> None:
    pool.call(Call("echo", (0,)))
    before = pool.worker_pids()
    assert pool.call(Call("alone", (function,), timeout_s=LIMIT_S)).status is status
    assert pool.call(Call("get_poison")).value == 0
    assert pool.worker_pids() == before


def test_only_numbers_are_believed_of_an_isolated_call(pool: SandboxPool) -> None:
    calls = [Call("alone", ("echo", value)) for value in (0.25, None, "1.0", [1.0])]
    assert [outcome.value for outcome in pool.call_batch(calls)] == [0.25, None, None, None]
    assert pool.call(calls[2]).status is Status.BAD_VALUE


HARM = [
    "os.system('touch {canary}')",
    "import subprocess; subprocess.run(['touch', '{canary}'])",
    "open('{canary}', 'w')",
    "open('{canary}', 'a')",
    "os.open('{canary}', os.O_CREAT | os.O_RDWR)",
    "os.mkdir('{canary}')",
    "os.symlink('/', '{canary}')",
    "os.rename('{victim}', '{canary}')",
    "os.remove('{victim}')",
    "os.chmod('{victim}', 0)",
    "os.truncate('{victim}', 0)",
    "import socket; socket.socket()",
    "os.execv('/bin/touch', ['touch', '{canary}'])",
    "os.fork()",
    "os.kill(os.getppid(), 9)",
]


@pytest.mark.parametrize("module", [FUNCTIONS, "tests.environments.sandbox_without_kernel"])
def test_harm_is_refused_with_a_reason(tmp_path: Path, module: str) -> None:
    canary, victim = tmp_path / "canary", tmp_path / "victim"
    victim.write_text("whole")
    codes = [code.format(canary=canary, victim=victim) for code in HARM]
    pool = SandboxPool(module, workers=1)
    outcomes = pool.call_batch([Call("try_all", (code, True)) for code in codes])
    pool.close()
    assert [outcome.status for outcome in outcomes] == [Status.REFUSED] * len(codes)
    assert outcomes[0].message == "answer tried os.system"
    assert not canary.exists()
    assert victim.read_text() == "whole"
    assert victim.stat().st_mode & 0o400


def test_the_kernel_refuses_what_the_hook_does_not_see(pool: SandboxPool, tmp_path: Path) -> None:
    if "seccomp filter" not in pool.protection():
        pytest.skip(pool.protection())
    canary, victim = tmp_path / "canary", tmp_path / "victim"
    victim.write_text("whole")
    codes = [code.format(canary=canary, victim=victim) for code in (*HARM, "os.mknod('{canary}')")]
    outcomes = pool.call_batch([Call("alone", ("try_all", code, False)) for code in codes])
    silent = "os.system"  # gives an exit code instead of raising
    assert all("PermissionError" in o.message for o, code in zip(outcomes, codes, strict=True) if silent not in code)
    assert not canary.exists()
    assert victim.read_text() == "whole"


def test_a_machine_without_seccomp_is_visible() -> None:
    pool = SandboxPool("tests.environments.sandbox_without_kernel", workers=1)
    assert pool.protection().startswith("audit hook and resource limits only: seccomp is not available")
    assert pool.call(Call("alone", ("echo", 1))).value == 1
    pool.close()


def test_workers_see_no_keys_and_hash_alike(pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary")
    fresh = SandboxPool(FUNCTIONS, workers=1)
    environment = fresh.call(Call("environment")).value
    fresh.close()
    assert "canary" not in environment.values()
    assert environment["PYTHONHASHSEED"] == "0"


def test_many_threads_share_the_workers(pool: SandboxPool) -> None:
    def ask(thread: int) -> list[int]:
        return [outcome.value for outcome in pool.call_batch([Call("echo", (thread * 100 + i,)) for i in range(100)])]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers == [list(range(thread * 100, thread * 100 + 100)) for thread in range(8)]
    assert len(pool.worker_pids()) <= 2


def test_a_long_batch_does_not_hold_up_a_short_one() -> None:
    pool = SandboxPool(FUNCTIONS, workers=1)
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(pool.call_batch, [Call("sleep", (0.1,)) for _ in range(20)])
        time.sleep(0.3)
        assert pool.call(Call("echo", ("short",))).value == "short"
        assert not long.done()
        assert [outcome.value for outcome in long.result()] == ["slept"] * 20
    pool.close()


def test_a_worker_that_was_killed_while_idle_is_replaced(pool: SandboxPool) -> None:
    pool.call(Call("echo", (1,)))
    killed = pool.worker_pids()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert all(ends_soon(pid) for pid in killed)
    pool.call_batch([Call("echo", (2,))] * 2)  # a call that was handed over at the moment of death is lost
    assert [outcome.value for outcome in pool.call_batch([Call("echo", (3,))] * 2)] == [3, 3]
    assert not set(killed) & set(pool.worker_pids())


def test_closing_stops_the_workers_and_the_next_call_starts_new_ones() -> None:
    pool = SandboxPool(FUNCTIONS, workers=2)
    pool.call(Call("echo", (1,)))
    pids = pool.worker_pids()
    pool.close()
    assert pids
    assert all(ends_soon(pid) for pid in pids)
    assert pool.call(Call("echo", (2,))).value == 2
    pool.stop_idle()
    assert pool.call(Call("echo", (3,))).value == 3
    pool.close()


def test_closing_fails_the_batches_under_way() -> None:
    pool = SandboxPool(FUNCTIONS, workers=1)
    pool.call(Call("echo", (1,)))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.call_batch, [Call("sleep", (60,), timeout_s=90)])
        time.sleep(0.2)
        pool.close()
        with pytest.raises(SandboxError, match="closed while calls were under way"):
            waiting.result()


def test_a_module_that_does_not_import_is_named() -> None:
    pool = SandboxPool("tests.environments.no_such_module", workers=1)
    with pytest.raises(SandboxError, match=r"can't import tests.environments.no_such_module.*ModuleNotFoundError"):
        pool.call(Call("echo", (1,)))
    pool.close()


SCRIPT = """
import sys, threading
from llenvs_fast.environments.sandbox import Call, SandboxPool
pool = SandboxPool({functions!r}, workers=2)
pool.call_batch([Call("echo", (i,)) for i in range(9)])
threading.Thread(target=pool.call, args=(Call("ignore_sigterm", timeout_s=600),), daemon=True).start()
print(*pool.worker_pids(), flush=True)
pool.call(Call("alone", ("loop",), timeout_s=600))
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_die_with_the_script_that_started_them(tmp_path: Path, death: signal.Signals) -> None:
    script = tmp_path / "script.py"  # has no main guard
    script.write_text(SCRIPT.format(functions=FUNCTIONS))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
    parent = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert pids
    time.sleep(0.3)
    parent.send_signal(death)
    parent.communicate(timeout=30)
    assert all(ends_soon(pid) for pid in pids)
