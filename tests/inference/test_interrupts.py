"""SIGINT waits for the end of a step, and a second one does not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from llenvs_fast.inference.interrupts import children_deaf_to_interrupts, held_interrupts


def test_an_interrupt_comes_after_the_block_and_the_block_is_whole() -> None:
    done: list[str] = []

    def interrupted() -> None:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("rest of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["rest of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_goes_through_at_once() -> None:
    done: list[str] = []

    def interrupted_twice() -> None:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("after the first")
            signal.raise_signal(signal.SIGINT)
            done.append("after the second")

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    assert done == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_callers_own_handler_is_called_once_and_kept() -> None:
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert heard == []
        assert heard == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_in_the_block_is_not_hidden_by_an_interrupt() -> None:
    with pytest.raises(ZeroDivisionError), held_interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_hold_nothing() -> None:
    ran: list[bool] = []

    def work() -> None:
        with held_interrupts():
            ran.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]


def test_a_child_started_deaf_does_not_hear_what_its_parent_hears() -> None:
    waiting = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read(); print('well')"]
    children = []
    with children_deaf_to_interrupts():
        children.append(subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    children.append(
        subprocess.Popen(
            waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    )
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGINT)
    assert [child.communicate("")[0] for child in children] == ["well\n", ""]
