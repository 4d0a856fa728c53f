"""The kernel's part of the sandbox: a seccomp filter that makes harmful system calls fail with EPERM.

A filter is a short BPF program that the kernel runs on every system call of this process and its children; it can be
added to, never taken back. Reading files and writing to open pipes stay possible. Linux on x86_64 and aarch64 only:
elsewhere `install` raises OSError and the caller says so in the run's record.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable

# name: (x86_64, aarch64); None where the architecture has no such call
_FILES: dict[str, tuple[int | None, int | None]] = {
    "creat": (85, None), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None),
    "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "truncate": (76, 45), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "open_by_handle_at": (304, 265), "memfd_create": (319, 279),
}  # fmt: skip
_SYSTEM: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203),
    "bind": (49, 200), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "pidfd_getfd": (438, 438), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "reboot": (169, 142), "sethostname": (170, 161),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
}  # fmt: skip
_PROCESSES: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "kill": (62, 129), "tkill": (200, 130),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "prlimit64": (302, 261), "setrlimit": (160, 164), "setpriority": (141, 140),
    "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
# all that is left to a process that runs a model's code
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
_OPEN = {"open": ((2, None), 1), "openat": ((257, 56), 2)}  # and which argument holds the flags
_NOT_THERE = {"openat2": (437, 437), "clone3": (435, 435)}  # arguments in memory, which a filter can't read
_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}  # column, AUDIT_ARCH, seccomp(2)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16
_X32_BIT = 0x40000000
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _ALL_THREADS = 38, 1, 1


def install(*, allow_processes: bool) -> None:
    """Filter this process for good. `allow_processes` leaves fork and kill in place.

    Raises OSError where the kernel or the architecture can't do it.
    """
    _apply(lambda column, arch: _program(column, arch, allow_processes), _ALL_THREADS)


def confine() -> None:
    """Leave this process, which runs a model's code, a short list of system calls, for good.

    Computing, allocating, sleeping, and reading and writing what is open already stay possible. Opening or looking up
    files, sockets, processes, threads and signals fail with EPERM. Raises OSError where it can't be done.
    """
    _apply(_confined_program, 0)


def _apply(program_for: Callable[[int, int], list[bytes]], flags: int) -> None:
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {sys.platform} on {machine}")
    column, arch, seccomp_number = _ARCHITECTURES[machine]
    program = program_for(column, arch)
    code = ctypes.create_string_buffer(b"".join(program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
    number, mode = ctypes.c_long(seccomp_number), ctypes.c_ulong(_SET_MODE_FILTER)
    if libc.syscall(number, mode, ctypes.c_ulong(flags), filter_):
        raise OSError(ctypes.get_errno(), "seccomp(SECCOMP_SET_MODE_FILTER) failed")


def _program(column: int, arch: int, allow_processes: bool) -> list[bytes]:
    """The filter, one instruction an entry; every test is followed by its own return, so no jump is ever far."""
    refuse, missing = _instruction(_RETURN, _ERRNO | errno.EPERM), _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    program = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_JUMP_IF_EQUAL, arch, 1, 0),
        refuse,
        _instruction(_LOAD, _NUMBER_OFFSET),
        _instruction(_JUMP_IF_AT_LEAST, _X32_BIT, 0, 1),
        refuse,
    ]
    denied = _FILES | _SYSTEM | ({} if allow_processes else _PROCESSES)
    for numbers in denied.values():
        if (number := numbers[column]) is not None:
            program += [_instruction(_JUMP_IF_EQUAL, number, 0, 1), refuse]
    for numbers in _NOT_THERE.values():
        program += [_instruction(_JUMP_IF_EQUAL, numbers[column], 0, 1), missing]
    for numbers, flags_argument in _OPEN.values():
        if (number := numbers[column]) is not None:
            program += [
                _instruction(_JUMP_IF_EQUAL, number, 0, 4),
                _instruction(_LOAD, _ARGS_OFFSET + 8 * flags_argument),
                _instruction(_JUMP_IF_ANY_BIT, _WRITING, 0, 1),
                refuse,
                _instruction(_LOAD, _NUMBER_OFFSET),
            ]
    return [*program, _instruction(_RETURN, _ALLOW)]


def _confined_program(column: int, arch: int) -> list[bytes]:
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
