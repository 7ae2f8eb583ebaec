"""Forking the processes of one candidate, and ending every one of them.

Used by the zygote, which must be a subreaper. With a PID namespace the candidate lives beside an init of ours: its
death, which the kernel extends to everything in the namespace, is the end of the candidate, whatever it forked. The
candidate itself is not that init, which would be deaf to signals, but a child of the zygote that was forked into the
namespace: its exit status arrives here as it is. Without a namespace, processes are found in /proc and by their user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_CLONE_NEWPID = 0x20000000
_ALL_FDS = 1 << 20
# How long stopping all processes of a candidate, and ending them, may take.
_PATIENCE_S = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


class PidNamespace:
    """A PID namespace with an init in it, for the children of this process.

    Raises:
        OSError: the host does not allow it.
    """

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._inside = -1
        self.init = 0
        try:
            # Refused in a user namespace, from which there would be no way back.
            self._enter(self._own)
            _check("unshare", _libc.unshare(_CLONE_NEWPID))
            # From here on until the way back, children of this process are born in the new namespace.
            try:
                self.init = os.fork()
                if self.init == 0:
                    _be_init()
                self._inside = os.open("/proc/self/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                self._enter(self._own)
        except BaseException:
            self.close()
            raise

    def fork(self) -> int:
        """os.fork, with the child in the namespace."""
        self._enter(self._inside)
        try:
            pid = os.fork()
        except BaseException:
            self._enter(self._own)
            raise
        if pid != 0:
            self._enter(self._own)
        return pid

    def close(self) -> None:
        """Kill the init and with it everything inside. The caller reaps."""
        if self.init:
            _signal(self.init, signal.SIGKILL)
        for fd in (self._own, self._inside):
            if fd >= 0:
                os.close(fd)
        self.init, self._own, self._inside = 0, -1, -1

    def _enter(self, fd: int) -> None:
        _check("setns", _libc.setns(fd, _CLONE_NEWPID))


def _be_init() -> None:
    """What process 1 of the namespace does: nothing, while the kernel reaps its adopted children. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        os.closerange(0, _ALL_FDS)
        while True:
            signal.pause()
    finally:
        os._exit(1)


class Children:
    """The processes of one candidate at a time, all of them below this process.

    `uid` is the user they run as, when that is not this process's own.
    """

    def __init__(self, uid: int | None, pid_namespace: bool) -> None:
        self._uid = uid
        self._pid_namespace = pid_namespace
        self._namespace: PidNamespace | None = None

    def prepare(self) -> None:
        """Do ahead of time what `fork` would otherwise do.

        Raises:
            OSError: the host does not allow a PID namespace.
        """
        if self._pid_namespace and self._namespace is None:
            self._namespace = PidNamespace()

    def fork(self) -> int:
        """os.fork for the candidate. Raises OSError as `prepare` does."""
        self.prepare()
        if self._namespace is None:
            return os.fork()
        return self._namespace.fork()

    def freeze(self, only: int | None) -> None:
        """SIGSTOP the process `only`, or every process of the candidate, and wait until they have stopped.

        Raises:
            TimeoutError: they do not: they wake one another where no filter forbids it.
        """
        end = time.monotonic() + _PATIENCE_S
        if only is None and self._uid is not None:
            # Reaches all at one moment, also one that is always gone, with a child left, before it is found in /proc.
            signal_user(self._uid, signal.SIGSTOP)
        signalled: set[int] = set()
        # What was forked while this went on is found in the next round.
        while moving := [pid for pid in self._pids(only) if not _has_stopped(pid, pid in signalled)]:
            if time.monotonic() > end:
                raise TimeoutError("processes of a candidate could not be stopped")
            for pid in moving:
                _signal(pid, signal.SIGSTOP)
            signalled.update(moving)
            time.sleep(0.001)

    def thaw(self) -> None:
        """SIGCONT for all of them."""
        if self._uid is not None:
            signal_user(self._uid, signal.SIGCONT)
            return
        for pid in self._pids(None):
            _signal(pid, signal.SIGCONT)

    def _pids(self, only: int | None) -> set[int]:
        if only is not None:
            return {only}
        init = {self._namespace.init} if self._namespace is not None else set()
        return set(descendants(os.getpid())) - init

    def end(self, deadline_s: float = _PATIENCE_S) -> None:
        """SIGKILL and reap everything until nothing is left.

        Raises:
            TimeoutError: something would not die (a process stuck in a driver call).
        """
        end = time.monotonic() + deadline_s
        namespace, self._namespace = self._namespace, None
        if namespace is not None:
            namespace.close()
        while True:
            if namespace is None:
                self._kill()
            if _reap() and (namespace is not None or not descendants(os.getpid())):
                return
            if time.monotonic() > end:
                raise TimeoutError("processes of a candidate could not be ended")
            time.sleep(0.001)

    def _kill(self) -> None:
        """Stopping all of them first keeps a fork bomb from outrunning the killing."""
        pids = descendants(os.getpid())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                _signal(pid, number)
        if self._uid is not None:
            signal_user(self._uid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Every live process below `root`, from /proc."""
    parents: dict[int, int] = {}
    unread = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    while unread:
        before = {pid: parents.pop(pid, 0) for pid in unread}
        for pid in unread:
            fields = _stat(f"/proc/{pid}/stat")
            if fields:
                parents[pid] = int(fields[1])
        # One whose parent has ended meanwhile has another now. (The parent of a hidden one is missing for ever.)
        changed = {pid for pid in unread if parents.get(pid, 0) != before[pid]}
        unread = {pid for pid in changed if parents.get(pid, 0) != 0 and parents[pid] not in parents}
    below: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - below
        below |= frontier
    return sorted(below)


def _stat(path: str) -> list[bytes]:
    """State, parent, ... of a process or thread; empty when it is gone."""
    with contextlib.suppress(OSError, IndexError), open(path, "rb") as handle:
        return handle.read().rsplit(b")", 1)[1].split()
    return []


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    return _stat(f"/proc/{pid}/stat")[:1] == [b"T"]


def _has_stopped(pid: int, signalled: bool) -> bool:
    """Whether all threads are stopped or gone.

    One that was `signalled` may also be in the middle of a wait in the kernel that a signal does not end, such as for a
    child of vfork: it stops before it comes back, and a fork of its fails.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    still = (b"T", b"t", b"Z", b"X", b"D") if signalled else (b"T", b"t", b"Z", b"X")
    return all((_stat(f"/proc/{pid}/task/{thread}/stat") or still)[0] in still for thread in threads)


def signal_user(uid: int, number: int) -> None:
    """kill(-1) as the candidate's user: reaches processes that left the tree, and nobody else's."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, number)
        except OSError:
            pass
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _reap() -> bool:
    """Reap whatever has ended; whether no child is left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False


def _check(name: str, result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
