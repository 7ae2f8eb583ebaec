"""Landlock: which files this process and all its children may use from now on. Raw system calls through ctypes.

Source: Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h of Linux 6.12.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

# The same numbers on every architecture.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15

LIST = _READ_DIR
READ = _EXECUTE | _READ_FILE | _READ_DIR
USE = READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
"""Read and write what is there, devices included, but create and remove nothing."""
ALL = (1 << 16) - 1

_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
# The rights that each version of the interface knows, as their highest bit. Version 1 cannot allow renaming a file
# into another directory, which Triton's cache does.
_LAST_RIGHT = {2: 13, 3: 14, 4: 14}
_LAST_KNOWN_RIGHT = 15
_MINIMUM_ABI = 2
_NET_ABI = 4
_SCOPE_ABI = 6
_NET_ALL = 0b11  # bind and connect TCP
_SCOPE_ALL = 0b11  # abstract Unix sockets and signals

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


def abi() -> int:
    """The version of the interface; 0 when the kernel has none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION))


def restrict(rules: Iterable[tuple[str, int]], scope: bool) -> None:
    """Deny every use of files and TCP that no rule allows. A rule is a path and the rights on all that is below it;
    a path that does not exist is passed over.

    The caller has set no_new_privs.

    Raises:
        OSError: the kernel has no Landlock, or not what is asked of it.
    """
    version = abi()
    if version < _MINIMUM_ABI or (scope and version < _SCOPE_ABI):
        raise OSError(f"Landlock's version here is {version}")
    handled = (2 << _LAST_RIGHT.get(version, _LAST_KNOWN_RIGHT)) - 1
    attributes = _Attributes(handled, _NET_ALL if version >= _NET_ABI else 0, _SCOPE_ALL if scope else 0)
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _NET_ABI else 8
    ruleset = _check(_libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0))
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & handled)
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        _check(_libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd), 0))
    finally:
        os.close(fd)


def _check(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
