"""What a candidate is confined to. Applied in the forked child, before it reads a byte of the submission.

Touches the kernel through ctypes; imports nothing heavy. What the host allows is probed once, in throw-away children
that go through exactly what a candidate goes through and then check that it holds; what does not hold is not in the
level that is reported.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import IO

from server.worker import landlock, level, libraries, seccomp
from server.worker.children import Children, signal_user
from server.worker.level import IPC, LANDLOCK, MOUNT, NET, PID, SCOPE, SECCOMP, UID
from server.worker.users import claim_uid
from server.worker.view import SHARED_MEMORY, WORKDIR, View

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWUSER = 0x10000000
_NAMESPACES = {MOUNT: 0x00020000, IPC: 0x08000000, NET: 0x40000000}

MAX_FILE_BYTES = 4 << 30
MAX_OPEN_FILES = 8192
MAX_TASKS = 2048
_NICE = 5
# Of a candidate's memory, for what its files in memory may take.
_FILES_SHARE = 4
_PROBE_MEMORY_BYTES = 4 << 30
_PROBE_TIMEOUT_S = 30
_DIED = "the process died"

# In which order features are given up when the device does not work with all of them.
_LEAST_NEEDED_FIRST = (PID, SECCOMP, SCOPE, LANDLOCK, IPC, MOUNT, NET)

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int, second: int = 0) -> None:
    unused = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(second), unused, unused) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def become_subreaper() -> None:
    """Orphans below this process become its children, so that it can end and reap them all."""
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:  # older gVisor: there an orphan is found by its user, and process 1 reaps it
        print(f"sandbox: orphans go to process 1: {error}", file=sys.stderr)


def make_undumpable() -> None:
    """Keep processes of the same user from attaching to this one or reading its memory and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _be_the_first_to_go() -> None:
    """When memory runs out the kernel ends candidates, and neither the judge nor the server.

    Memory that no limit of a process counts, such as shared memory, has no other bound. Only a process with
    CAP_SYS_RESOURCE may take this back, if one with it said so: therefore before that is dropped.
    """
    _prctl(_PR_SET_DUMPABLE, 1)  # or the file is root's
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    make_undumpable()


@dataclass(frozen=True)
class Sandbox:
    """A level that was found to work, and what is needed to give it to a child."""

    features: frozenset[str]
    uid: int | None
    view: View
    readable: tuple[str, ...] = ()
    """What Landlock lets the reference read; without a mount namespace only."""
    libraries: tuple[str, ...] = ()
    """Files that are not there for a submission."""
    pytorch: tuple[str, ...] = ()
    """Files that are there only for one that links with them."""
    submission_readable: tuple[str, ...] = ()
    """`readable` without `libraries`."""
    unlinked_readable: tuple[str, ...] = ()
    """`readable` without both."""

    def __str__(self) -> str:
        return level.describe(self.features)

    def children(self) -> Children:
        return Children(self.uid, PID in self.features)

    def with_features(self, features: frozenset[str]) -> Sandbox:
        return dataclasses.replace(self, features=features, uid=self.uid if UID in features else None)

    def enter(self, workdir: str, memory_bytes: int, trusted: bool = False, links: bool = False) -> str:
        """Confine the calling process and return the path by which it sees `workdir` (owned by `uid`, mode 0700).

        A `trusted` one keeps the files `libraries` and `pytorch`, one that `links` the second.

        Raises:
            OSError: a step that the level promises failed.
        """
        os.setsid()
        # However many processes it starts, the judge gets its turn.
        os.nice(_NICE)
        _be_the_first_to_go()
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        flags = sum(flag for name, flag in _NAMESPACES.items() if name in self.features)
        if flags and _libc.unshare(flags) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        seen = workdir
        if MOUNT in self.features:
            without = () if trusted else self.libraries if links else self.libraries + self.pytorch
            self.view.mount(workdir, memory_bytes // _FILES_SHARE, PID in self.features, without)
            seen = WORKDIR
        # While directories that are closed to the candidate's user can still be opened.
        if LANDLOCK in self.features:
            landlock.restrict(self._rules(seen, trusted, links), SCOPE in self.features)
        _drop_privileges(self.uid)
        # After setuid, which clears it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self._limit(memory_bytes)
        os.chdir(seen)
        os.umask(0o077)
        _use_private_directories(seen)
        if SECCOMP in self.features:
            seccomp.restrict()
        return seen

    def _rules(self, workdir: str, trusted: bool, links: bool) -> list[tuple[str, int]]:
        """Landlock's: what exists may be listed, what the view shows read, devices used, the own directory written."""
        rules = [(workdir, landlock.ALL), ("/dev", landlock.USE), (os.path.realpath("/proc/self"), landlock.USE)]
        if MOUNT in self.features:
            return [*rules, ("/", landlock.READ), (SHARED_MEMORY, landlock.ALL)]
        readable = self.readable if trusted else self.submission_readable if links else self.unlinked_readable
        return [*rules, ("/", landlock.LIST), *((path, landlock.READ) for path in readable)]

    def _limit(self, memory_bytes: int) -> None:
        limits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
            resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
            # Private writable memory. RLIMIT_AS would count CUDA's address reservations and break it.
            resource.RLIMIT_DATA: memory_bytes,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        if self.uid is not None or MOUNT in self.features:
            # Counted per user and user namespace (without root, that of the mounts). With neither of its own it would
            # count the server's threads too.
            limits[resource.RLIMIT_NPROC] = MAX_TASKS
        for name, value in limits.items():
            _, hard = resource.getrlimit(name)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            try:
                resource.setrlimit(name, (value, value))
            except ValueError:
                if name != resource.RLIMIT_MSGQUEUE:  # gVisor sets none for queues
                    raise

    def clean_up(self) -> None:
        """Remove what an ended candidate could have left outside its working directory."""
        if self.uid is not None and not {MOUNT, LANDLOCK} & self.features:
            self.view.sweep(self.uid)

    def verify(self) -> None:
        """Check from inside, without the calls that made them, that the features are in force.

        Raises:
            OSError: one is not, and says which.
        """
        with open("/proc/self/status") as lines:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
        held = {
            UID: os.getresuid() == (self.uid,) * 3 and os.getgroups() == [],
            MOUNT: os.stat(WORKDIR).st_uid == os.getuid() and not os.path.exists(__file__),
            PID: {name for name in os.listdir("/proc") if name.isdigit()} <= {"1", str(os.getpid())},
            LANDLOCK: not _opens(__file__),
            SECCOMP: _libc.personality(ctypes.c_ulong(0xFFFFFFFF)) == -1,
            "the loss of capabilities": not any(int(status.get(name, "0"), 16) for name in ("CapEff", "CapPrm")),
        }
        if NET in self.features and os.path.exists("/proc/self/net/dev"):
            with open("/proc/self/net/dev") as lines:
                held[NET] = {line.split(":")[0].strip() for line in lines if ":" in line} <= _EMPTY_NETWORK
        for name, holds in held.items():
            if not holds and (name in self.features or name not in level.FEATURES):
                raise OSError(f"{name} is not in force")


# What the kernel puts into every new network namespace; none of them leads anywhere.
_EMPTY_NETWORK = {
    *("lo", "sit0", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6tnl0", "ip6gre0"),
}


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _drop_privileges(uid: int | None) -> None:
    capability = 0
    try:
        while True:
            _prctl(_PR_CAPBSET_DROP, capability)
            capability += 1
    except OSError as error:
        # EINVAL: past the last one. EPERM: not ours to drop, and useless with no_new_privs.
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # Ambient ones go with them.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _use_private_directories(workdir: str) -> None:
    os.environ.update(
        {
            "HOME": workdir,
            # Its user has no account to ask for a name.
            "USER": "submission",
            "LOGNAME": "submission",
            "TMPDIR": workdir,
            "TRITON_CACHE_DIR": f"{workdir}/triton",
            "TRITON_HOME": workdir,
            "TORCH_EXTENSIONS_DIR": f"{workdir}/extensions",
            "TORCHINDUCTOR_CACHE_DIR": f"{workdir}/inductor",
            "CUDA_CACHE_PATH": f"{workdir}/cuda",
            "XDG_CACHE_HOME": f"{workdir}/cache",
        }
    )
    tempfile.tempdir = None


def enter_user_namespace() -> None:
    """Without root: become able to make namespaces, where the host lets every user do that.

    Must come before this process has threads and before it is undumpable. Where the host does not allow it nothing
    changes, and the probe will find what can be had without it.
    """
    user, group = os.getuid(), os.getgid()
    if user == 0 or _libc.unshare(_CLONE_NEWUSER) != 0:
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as handle:
            handle.write(text)


def _attempt(sandbox: Sandbox, use: Callable[[], object]) -> str | None:
    """Run `use` in a throw-away child confined by `sandbox`; None when all went well, else the error.

    A child that dies without a word is tried again: a feature is given up for the judge's life.
    """
    error = _attempt_once(sandbox, use)
    return _attempt_once(sandbox, use) if error == _DIED else error


def _attempt_once(sandbox: Sandbox, use: Callable[[], object]) -> str | None:
    workdir = tempfile.mkdtemp(prefix="kernel_env-probe-")
    children = sandbox.children()
    read_end, write_end = os.pipe()
    try:
        if sandbox.uid is not None:
            os.chown(workdir, sandbox.uid, sandbox.uid)
        pid = children.fork()
        if pid == 0:
            answer = b"ok"
            try:
                signal.alarm(_PROBE_TIMEOUT_S)
                os.dup2(write_end, 3)
                close_inherited()
                sandbox.enter(workdir, _PROBE_MEMORY_BYTES)
                sandbox.verify()
                use()
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"[:2000].encode()
            finally:
                os.write(3, answer)
                os._exit(0)
        os.waitpid(pid, 0)
        os.set_blocking(read_end, False)
        try:
            answer = os.read(read_end, 4096).decode(errors="replace")
        except BlockingIOError:
            answer = _DIED
        return None if answer == "ok" else answer
    except OSError as error:
        return str(error)
    finally:
        os.close(read_end)
        os.close(write_end)
        children.end()
        shutil.rmtree(workdir, ignore_errors=True)


def _nothing() -> None:
    pass


def probe(use: Callable[[], object], allowed: Collection[str] = level.FEATURES) -> tuple[Sandbox, IO[bytes] | None]:
    """The most of `allowed` that this host gives a candidate, and the lock that holds its user.

    `use` uses the device, and must work in the child that gets all features; those with which it fails are given up,
    as few as possible and the least needed first. What was given up is said on stderr.

    Raises:
        RuntimeError: nothing works; the message says why.
    """
    claim, uid = None, None
    base: frozenset[str] = frozenset()
    if os.geteuid() == 0 and UID in allowed:
        uid, claim = claim_uid()
        signal_user(uid, signal.SIGKILL)  # what a judge that was killed could have left
        base = frozenset({UID})
    view = View.of_host(uid is not None)
    files = libraries.files([os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"])
    files += libraries.kernels()
    pytorch = libraries.pytorch()
    readable = (tuple(view.readable(without)) for without in ((), files, files + pytorch))
    host = Sandbox(base, uid, view, next(readable), files, pytorch, next(readable), next(readable))
    if (error := _attempt(host, _nothing)) is not None:
        raise RuntimeError(f"submissions cannot be run as another user: {error}")
    features = set(base)
    for name in level.FEATURES[1:]:
        needs = level.NEEDS.get(name, set())
        if (
            name in allowed
            and needs <= features
            and _attempt(host.with_features(base | needs | {name}), _nothing) is None
        ):
            features.add(name)
    if uid is not None and MOUNT not in features and view.unreachable:
        paths = ", ".join(view.unreachable)
        raise RuntimeError(f"submissions run as another user, who cannot read {paths}")
    first_error = None
    for fewer in _fallbacks(frozenset(features)):
        sandbox = host.with_features(fewer)
        error = _attempt(sandbox, use)
        if error is None:
            if first_error is not None:
                given_up = ", ".join(sorted(features - fewer))
                print(
                    f"sandbox: without {given_up}, as the device does not work with it: {first_error}", file=sys.stderr
                )
            return sandbox, claim
        first_error = first_error or error
    raise RuntimeError(f"the device does not work in any sandbox: {first_error}")


def _fallbacks(features: frozenset[str]) -> Iterator[frozenset[str]]:
    """`features`; then without one of them; then without more and more."""
    yield features
    present = [name for name in _LEAST_NEEDED_FIRST if name in features]
    for name in present:
        yield _without(features, name)
    for name in present:
        features = _without(features, name)
        yield features


def _without(features: frozenset[str], name: str) -> frozenset[str]:
    """`features` less `name` and what needs it."""
    return frozenset(other for other in features if other != name and name not in level.NEEDS.get(other, ()))


def close_inherited(keep: int = 3) -> None:
    """Close what the forking process had open above descriptor 3, less `keep`. The driver's own files stay: NVML opened
    them, and CUDA would use them closed."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            if fd > 3 and fd != keep and not os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                os.close(fd)
