"""The last lock on a process that runs a model's code: a list of the system calls that it may still make.

Computing, allocating, sleeping, and reading and writing what is open already stay possible. Everything else fails with
EPERM: opening or looking up files, sockets, processes, threads, signals. Linux on x86_64 and aarch64 only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

# name: (x86_64, aarch64); None where the architecture has no such call
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "readv": (19, 65), "write": (1, 64), "writev": (20, 66), "close": (3, 57), "lseek": (8, 62),
    "fstat": (5, 80), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98), "membarrier": (324, 283), "rseq": (334, 293), "sched_yield": (24, 124),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getrusage": (98, 165), "getrandom": (318, 278), "uname": (63, 160), "getcwd": (79, 17),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "sched_getaffinity": (204, 123), "exit": (60, 93),
    "exit_group": (231, 94),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}  # column, AUDIT_ARCH, seccomp(2)
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER = 38, 1


def confine() -> None:
    """Confine this process for good. Raises OSError where the kernel or the architecture can't do it."""
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {sys.platform} on {machine}")
    column, arch, seccomp_number = _ARCHITECTURES[machine]
    program = _program(column, arch)
    code = ctypes.create_string_buffer(b"".join(program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
    if libc.syscall(ctypes.c_long(seccomp_number), ctypes.c_ulong(_SET_MODE_FILTER), zero, filter_):
        raise OSError(ctypes.get_errno(), "seccomp(SECCOMP_SET_MODE_FILTER) failed")


def _program(column: int, arch: int) -> list[bytes]:
    """The filter, one instruction an entry; every test is followed by its own return, so no jump is ever far."""
    refuse, allow = _instruction(_RETURN, _ERRNO | errno.EPERM), _instruction(_RETURN, _ALLOW)
    program = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_JUMP_IF_EQUAL, arch, 1, 0),
        refuse,
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    for numbers in _ALLOWED.values():
        if (number := numbers[column]) is not None:
            program += [_instruction(_JUMP_IF_EQUAL, number, 0, 1), allow]
    return [*program, refuse]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
