"""Hosts to start a sandbox on: this one, and this one with parts taken away before the zygote starts.

What is taken away is really gone for the zygote: a capability left its bounding set, a system call fails. Works as
root only.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from server.worker import view
from server.worker.device import CpuDevice
from server.worker.lease import GpuLease
from server.worker.process import CandidateProcess, Zygote
from server.worker.protocol import Load, Loaded, Spawn

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 120.0
MEMORY_BYTES = 4 << 30

USER = 61000
"""The user that a server without root runs as."""

_CAP_SYS_ADMIN = 21
_CLONE_NEWNS = 0x00020000
_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 24, 22, 38
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)
_UNSHARE = (272, 97)[_COLUMN]
_LANDLOCK = 444
_PRCTL = (157, 167)[_COLUMN]
_EPERM, _EINVAL, _ENOSYS = 1, 22, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _fail_system_call(number: int, error: int, first_argument: int | None = None) -> None:
    """From now on this system call fails with `error`, always or only with this first argument."""
    lines = [(0x20, 0, 0, 0), (0x15, 0, 3 if first_argument is not None else 1, number)]
    if first_argument is not None:
        lines += [(0x20, 0, 0, 16), (0x15, 0, 1, first_argument)]
    lines += [(0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    program = struct.pack("@HP", len(lines), ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p).value)
    if _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def _open_python() -> None:
    """Let every user reach this Python, which may lie in root's home."""
    paths = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    closed = {path: ancestor for path in paths if (ancestor := view._closed_ancestor(path)) is not None}
    if not closed:
        return
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    view._mount("none", "/", "none", view._MS_REC_PRIVATE)
    handles = {path: os.open(path, os.O_PATH) for path in closed}
    for ancestor in set(closed.values()):
        view._mount("tmpfs", ancestor, "tmpfs", 0, b"mode=755")
    for path, handle in handles.items():
        os.makedirs(path)
        view._mount(f"/proc/self/fd/{handle}", path, "none", view._MS_BIND)


def _without_namespaces() -> None:
    _open_python()
    _libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)
    _fail_system_call(_UNSHARE, _EPERM)


def _without_landlock() -> None:
    _fail_system_call(_LANDLOCK, _ENOSYS)


def _bare() -> None:
    _open_python()
    _without_landlock()
    # After this filter there can be no other.
    _libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)
    _fail_system_call(_UNSHARE, _EPERM)
    _fail_system_call(_PRCTL, _EINVAL, first_argument=_PR_SET_SECCOMP)


def _become_user() -> None:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def _user_without_namespaces() -> None:
    _open_python()
    _fail_system_call(_UNSHARE, _EPERM)
    _become_user()


def _user() -> None:
    _open_python()
    _become_user()


@dataclass(frozen=True)
class HostKind:
    """`change` runs in the zygote's process before it executes Python; `level` is what the probe then finds."""

    name: str
    level: str
    change: Callable[[], None] | None = None
    uid: int = 0


FULL = HostKind("full", "uid+mount+net+ipc+pid+landlock+scope+seccomp")
CONTAINER = HostKind("container", "uid+landlock+scope+seccomp", _without_namespaces)
NO_LANDLOCK = HostKind("no_landlock", "uid+mount+net+ipc+pid+seccomp", _without_landlock)
BARE = HostKind("bare", "uid", _bare)
UNPRIVILEGED = HostKind("unprivileged", "same-uid+mount+net+ipc+landlock+scope+seccomp", _user, USER)
SAME_UID = HostKind("same_uid", "same-uid+landlock+scope+seccomp", _user_without_namespaces, USER)
HOSTS = (FULL, CONTAINER, NO_LANDLOCK, BARE, UNPRIVILEGED, SAME_UID)


@contextmanager
def popen_on(kind: HostKind) -> Iterator[None]:
    """Processes that are started meanwhile run on `kind`."""
    plain = subprocess.Popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subprocess.Popen", lambda *a, **k: plain(*a, preexec_fn=kind.change, **k))
        yield


def no_lease() -> GpuLease:
    """The lease of a judge without a server: everything is its own."""
    return GpuLease(None, CpuDevice())


class Host:
    """A zygote on a host."""

    def __init__(self, kind: HostKind) -> None:
        self.kind = kind
        with popen_on(kind):
            self.zygote = Zygote("cpu", None)
            self.zygote.wait_ready()
        self.uid = kind.uid if self.zygote.uid is None else self.zygote.uid

    @contextmanager
    def candidate(self, code: str, trusted: bool = False) -> Iterator[tuple[CandidateProcess, Path]]:
        """A candidate whose submission is `code`, not yet loaded, and its working directory."""
        with tempfile.TemporaryDirectory(prefix="kernel_env-test-") as base:
            os.chmod(base, 0o711)
            workdir = Path(base, "work")
            workdir.mkdir(0o700)
            (workdir / "submission.py").write_text(code)
            os.chown(workdir, self.uid, self.uid)
            os.chmod(workdir / "submission.py", 0o644)
            with CandidateProcess(self.zygote, no_lease(), Spawn(str(workdir), MEMORY_BYTES, trusted)) as candidate:
                # With a mount namespace it works in a copy, which is its own memory.
                inside = Path(f"/proc/{self.zygote.pid}/root/tmp")
                yield candidate, inside if "mount" in self.zygote.sandbox.split("+") else workdir

    def run(
        self,
        body: str,
        inside: Callable[[object], object] = lambda result: result,
        trusted: bool = False,
        **values: object,
    ) -> object:
        """What the expression or statements `body` leave in `result`; None when they raise an OSError.

        `inside` is applied to it while the candidate still lives.
        """
        lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
        code = (
            f"import ctypes, json, os, signal, socket, subprocess, sys, threading\n"
            f"libc = ctypes.CDLL(None, use_errno=True)\n"
            f"globals().update({values!r})\n"
            f"result = None\n"
            f"try:\n{lines}\n"
            f"except OSError as error:\n"
            f"    print(error)\n"
            f"with open('result.json', 'w') as file:\n"
            f"    json.dump(result, file)\n"
            f"import torch\n"
            f"class ModelNew(torch.nn.Module):\n"
            f"    pass\n"
        )
        with self.candidate(code, trusted) as (candidate, workdir):
            candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "The attack")
            return inside(json.loads((workdir / "result.json").read_text()))


_started: dict[str, Host] = {}


def start(kind: HostKind) -> Host:
    """The host of this kind, started once; it ends with the tests. Skips where this machine cannot stand in for it."""
    for needed in (FULL, kind):
        if needed.name not in _started:
            _started[needed.name] = Host(needed)
    if _started[FULL.name].zygote.sandbox != FULL.level:
        pytest.skip(f"this machine only gives {_started[FULL.name].zygote.sandbox}")
    return _started[kind.name]
