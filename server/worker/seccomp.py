"""The system calls a candidate may not make, as a seccomp filter built by hand for x86-64 and aarch64.

A list of what is denied, not of what is allowed: CUDA, compilers and Python use hundreds of calls. Denied are those
that reach other processes, namespaces, mounts, kernel objects that outlive a process, the clock and the network, those
whose only use here is attacking the kernel, and every way to have SIGCONT sent: a candidate that the judge has stopped
must stay so.

Source: Documentation/userspace-api/seccomp_filter.rst, and the system call tables of Linux 6.12.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000
_RET_ALLOW = 0x7FFF0000

_LOAD = 0x20  # ld [k]
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06
# Offsets in struct seccomp_data; both architectures are little-endian, so an argument's low half comes first.
_NUMBER, _ARCH, _ARGUMENT_0, _ARGUMENT_BYTES = 0, 4, 16, 8

_X32_BIT = 0x40000000
_AF_UNIX = 1
# NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_CLONE_EXIT_SIGNAL = 0xFF
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

# (x86-64, aarch64); None where an architecture lacks it.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "personality": (135, 92),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "open_by_handle_at": (304, 265),
    # the clock
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    # what would stay behind for the next candidate
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # sends any signal, also to a process that is stopped
    "timer_create": (222, 107),
}
# Denied with one value of one argument: (x86-64, aarch64), which argument, the value.
DENIED_WITH: dict[str, tuple[tuple[int, int], int, int]] = {
    "kill": ((62, 129), 1, signal.SIGCONT),
    "tkill": ((200, 130), 1, signal.SIGCONT),
    "tgkill": ((234, 131), 2, signal.SIGCONT),
    "rt_sigqueueinfo": ((129, 138), 1, signal.SIGCONT),
    "rt_tgsigqueueinfo": ((297, 240), 2, signal.SIGCONT),
    "pidfd_send_signal": ((424, 424), 1, signal.SIGCONT),
    "fcntl": ((72, 25), 1, 10),  # F_SETSIG: which signal asynchronous input sends
    "prctl": ((157, 167), 0, 1),  # PR_SET_PDEATHSIG, which is ours to set
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
# Answered with success and not done: the kernel shares the processor out by sessions, so that a submission of many
# processes has one share. Python's subprocess asks for it in honest code.
_SETSID = (112, 157)

# What platform.machine() says: (column of the tables, the kernel's AUDIT_ARCH value).
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def build(machine: str) -> bytes:
    """The filter's instructions.

    Raises:
        OSError: there is no table for this machine.
    """
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {machine}")
    column, arch = _MACHINES[machine]
    # (code, operand, where to go when true, when false); a label, or None for the next instruction.
    lines: list[tuple[int, int, str | None, str | None]] = [
        (_LOAD, _ARCH, None, None),
        (_EQUAL, arch, None, "kill"),
        (_LOAD, _NUMBER, None, None),
    ]
    if column == 0:
        lines.append((_AT_LEAST, _X32_BIT, "kill", None))
    numbers = [entry[column] for entry in DENIED.values()]
    lines += [(_EQUAL, number, "deny", None) for number in numbers if number is not None]
    lines.append((_EQUAL, _SETSID[column], "done", None))
    # Its flags lie in memory, out of a filter's sight; the C library falls back to clone.
    lines.append((_EQUAL, _CLONE3[column], "absent", None))
    lines += [(_EQUAL, entry[0][column], f"{name} with", None) for name, entry in DENIED_WITH.items()]
    lines.append((_EQUAL, _CLONE[column], "clone", None))
    lines.append((_EQUAL, _SOCKET[column], "socket", "allow"))
    labels = {}
    labels["clone"] = len(lines)
    lines += [
        (_LOAD, _ARGUMENT_0, None, None),
        (_ANY_BIT, _CLONE_NEW, "deny", None),
        (_AND, _CLONE_EXIT_SIGNAL, None, None),
        (_EQUAL, signal.SIGCONT, "deny", "allow"),
    ]
    labels["socket"] = len(lines)
    lines += [(_LOAD, _ARGUMENT_0, None, None), (_EQUAL, _AF_UNIX, "allow", "deny")]
    for name, (_, argument, value) in DENIED_WITH.items():
        labels[f"{name} with"] = len(lines)
        lines += [
            (_LOAD, _ARGUMENT_0 + argument * _ARGUMENT_BYTES, None, None),
            (_EQUAL, value, "deny", "allow"),
        ]
    for label, action in (
        ("allow", _RET_ALLOW),
        ("deny", _RET_ERRNO | errno.EPERM),
        ("absent", _RET_ERRNO | errno.ENOSYS),
        ("done", _RET_ERRNO | 0),
        ("kill", _RET_KILL_PROCESS),
    ):
        labels[label] = len(lines)
        lines.append((_RETURN, action, None, None))
    program = b""
    for index, (code, operand, true, false) in enumerate(lines):
        jumps = [0 if label is None else labels[label] - index - 1 for label in (true, false)]
        program += struct.pack("=HBBI", code, *jumps, operand)
    return program


def restrict() -> None:
    """Apply the filter to this process and all its children. The caller has set no_new_privs.

    Raises:
        OSError: the kernel has no seccomp, or this machine no table.
    """
    instructions = build(platform.machine())
    program = _Program(len(instructions) // 8, instructions)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")
