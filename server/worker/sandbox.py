"""What a candidate is confined to. Applied in the forked child, before it reads a byte of the submission.

Touches the kernel through ctypes; imports nothing heavy. `level()` says what this host allows: "uid+ns" (another
user, no network, private /tmp and IPC), "uid" (another user) or "same-uid" (the server was not started as root).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import tempfile
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MS_REC_PRIVATE = 16384 | 262144

CANDIDATE_UID = 61234
MAX_FILE_BYTES = 4 << 30
MAX_OPEN_FILES = 8192
MAX_TASKS = 2048

# Writable by everybody on an ordinary host; each candidate gets its own.
_COVERED = {"/tmp", "/var/tmp", "/dev/shm"}

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def become_subreaper() -> None:
    """Orphans below this process become its children, so that it can end and reap them all."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def make_undumpable() -> None:
    """Keep processes of the same user from attaching to this one or reading its memory and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _isolate() -> None:
    """New network, IPC and mount namespaces. Raises OSError when the host does not allow them."""
    if _libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("none", "/", "none", _MS_REC_PRIVATE)


def _mount(source: str, target: str, kind: str, flags: int, options: bytes | None = None) -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mounting {target}: {os.strerror(error)}")


def level() -> str:
    """The level this process can give its children, probed in a throw-away child."""
    if os.geteuid() != 0:
        return "same-uid"
    pid = os.fork()
    if pid == 0:
        try:
            _isolate()
        except OSError:
            os._exit(1)
        os._exit(0)
    return "uid+ns" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else "uid"


def hidden_runtime() -> dict[str, list[str]]:
    """The parts of the Python and CUDA installation that a candidate would not see, by the directory that hides them.

    Submitted code runs as another user and with a /tmp of its own, and still has to import from a Python that lies
    below /root or /tmp.
    """
    wanted = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path}
    wanted.add(os.environ.get("CUDA_HOME", ""))
    hidden: dict[str, list[str]] = {}
    for path in sorted({os.path.realpath(path) for path in wanted if os.path.isdir(path)}):
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            ancestor = "/" + "/".join(parts[:depth])
            if ancestor in _COVERED or not os.stat(ancestor).st_mode & 0o001:
                hidden.setdefault(ancestor, []).append(path)
                break
    return hidden


def _cover(workdir: str, hidden: dict[str, list[str]]) -> None:
    """Put private directories over the shared and the root-only ones, then show the runtime's own paths in them."""
    handles = [(path, os.open(path, os.O_PATH)) for paths in hidden.values() for path in paths]
    for directory in (*(_COVERED - {"/tmp"}), *(hidden.keys() - _COVERED)):
        if os.path.isdir(directory):
            mode = b"mode=1777" if directory in _COVERED else b"mode=755"
            _mount("tmpfs", directory, "tmpfs", 0, mode)
    _mount(workdir, "/tmp", "none", _MS_BIND)
    for path, handle in handles:
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{handle}", path, "none", _MS_BIND)
        os.close(handle)


def enter(workdir: str, uid: int | None, memory_bytes: int, namespaces: bool, hidden: dict[str, list[str]]) -> str:
    """Confine the calling process and return the path by which it sees `workdir` (owned by `uid`, mode 0700).

    With namespaces the working directory is bound over /tmp, so that nothing outside it is writable and shared, and
    paths in tracebacks are the same on every host. `hidden` is what `hidden_runtime` found.

    Raises:
        OSError: a step that the level promises failed.
    """
    os.setsid()
    seen = workdir
    if uid is not None:
        if namespaces:
            _isolate()
            _cover(workdir, hidden)
            seen = "/tmp"
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # After setuid, which clears it.
    die_with_parent()
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        # Private writable memory. RLIMIT_AS would count CUDA's address reservations and break it.
        (resource.RLIMIT_DATA, memory_bytes),
    ):
        _lower(name, value)
    if uid is not None:
        # Counted per user, so without a user of its own it would count the server's threads too.
        _lower(resource.RLIMIT_NPROC, MAX_TASKS)
    os.chdir(seen)
    os.umask(0o077)
    private = {
        "HOME": seen,
        "TMPDIR": seen,
        "TRITON_CACHE_DIR": f"{seen}/triton",
        "TRITON_HOME": seen,
        "TORCH_EXTENSIONS_DIR": f"{seen}/extensions",
        "TORCHINDUCTOR_CACHE_DIR": f"{seen}/inductor",
        "CUDA_CACHE_PATH": f"{seen}/cuda",
        "XDG_CACHE_HOME": f"{seen}/cache",
    }
    os.environ.update(private)
    tempfile.tempdir = None
    return seen


def _lower(name: int, value: int) -> None:
    _, hard = resource.getrlimit(name)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(name, (value, value))


def descendants(root: int) -> list[int]:
    """Every live process below `root`, from /proc."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as handle:
                fields = handle.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        parents[int(entry)] = int(fields[1])
    below: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - below
        below |= frontier
    return sorted(below)


def kill_descendants(root: int, uid: int | None, deadline_s: float = 30.0) -> None:
    """SIGKILL and reap everything below `root`, the calling, subreaping process, until nothing is left.

    Stopping all of them first keeps a fork bomb from outrunning the killing.

    Raises:
        TimeoutError: something would not die (a process stuck in a driver call).
    """
    end = time.monotonic() + deadline_s
    while True:
        pids = descendants(root)
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        if uid is not None:
            _kill_user(uid)
        _reap()
        if not descendants(root):
            return
        if time.monotonic() > end:
            raise TimeoutError("processes of a candidate could not be ended")
        time.sleep(0.002)


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _kill_user(uid: int) -> None:
    """kill(-1) as the candidate's user: reaches processes that left the tree, and nobody else's."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
