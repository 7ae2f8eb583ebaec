"""Users for candidates: one for each judge of the host, so that killing by user, and limits by user, reach one
candidate only.

Touches lock files in a directory that only root can open: what a candidate can bind, create or lock does not matter.
Ends the processes of a user that no judge has any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import tempfile
from typing import IO

# From a range that systemd's table of users (UIDS-GIDS.md) leaves to nobody.
FIRST_UID = 60800
LAST_UID = FIRST_UID + 63

_MAIN_DIRECTORY = "/run/kernel_env"
_KILL_TIMEOUT_S = 10.0
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def claim_uid() -> tuple[int, IO[bytes]]:
    """A user that no other judge of this host uses, for as long as the file is open in a process.

    Raises:
        OSError: all are in use, or there is no directory for the locks.
    """
    directory = _open_directory()
    try:
        for uid in range(FIRST_UID, LAST_UID + 1):
            lock = os.open(f"{uid}.lock", os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=directory)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                # For end_processes_of: the judge's group, which its zygote is in. A full disk costs no more than that.
                with contextlib.suppress(OSError):
                    os.pwrite(lock, b"%-20d" % os.getpgid(0), 0)
                return uid, open(lock, "rb")
    finally:
        os.close(directory)
    raise OSError(errno.EUSERS, f"the users {FIRST_UID} to {LAST_UID} are all in use by judges")


def end_processes_of(group: int) -> None:
    """End what is left of the candidates of a judge that is gone, by its process group. Never raises.

    Whoever has claimed their user since has ended them already.
    """
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        directory = _open_directory()
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".lock")]
            for name in names:
                with open(os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory), "rb") as lock:
                    if lock.read(20).strip() != b"%d" % group:
                        continue
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        uid = int(name.removesuffix(".lock"))
                        command = ["/bin/sh", "-c", "kill -9 -1"]
                        subprocess.run(command, user=uid, group=uid, extra_groups=[], timeout=_KILL_TIMEOUT_S)
        finally:
            os.close(directory)


def _open_directory() -> int:
    """The directory of the locks: the first of these that is, or can be made, root's own and closed to others."""
    tried = (_MAIN_DIRECTORY, os.path.join(tempfile.gettempdir(), "kernel_env-users"))
    for path in tried:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        except OSError:
            continue
        status = os.fstat(directory)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return directory
        os.close(directory)
    raise OSError(errno.EPERM, f"no directory for the judges' locks: neither {' nor '.join(tried)} can be root's own")
