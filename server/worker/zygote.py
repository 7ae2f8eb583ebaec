"""The fork server: torch and triton imported, CUDA untouched, one child a submission.

Trusted, and never runs submitted code itself. Started by the judge with an environment that holds nothing secret,
because its children can read it in /proc. It ends when the judge's socket closes, and takes every process below it
along.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import warnings

import torch  # noqa: F401  imported here so that children have it
import torch.utils.cpp_extension  # noqa: F401

from server.worker import sandbox
from server.worker.candidate import serve
from server.worker.device import create_device
from server.worker.guard import warm_up
from server.worker.protocol import (
    CandidateRequest,
    Connection,
    Exited,
    KillAll,
    Killed,
    PeerClosed,
    Spawn,
    Spawned,
    ZygoteReady,
    ZygoteRequest,
)

with contextlib.suppress(ImportError):  # the cpu evaluator can run without triton for C++ submissions
    import triton  # noqa: F401


def _child(
    kind: str, request: Spawn, control: int, output: int, namespaces: bool, hidden: dict[str, list[str]]
) -> None:
    """Becomes the candidate. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(control, 3)
        _close_inherited()
        sandbox.enter(request.workdir, request.uid, request.memory_bytes, namespaces, hidden)
        if kind == "cpu":
            torch.set_num_threads(1)
        sys.path.insert(0, os.getcwd())
        connection = Connection(socket.socket(fileno=3), CandidateRequest)
        serve(connection, create_device(kind))
    finally:
        os._exit(0)


def _close_inherited() -> None:
    """Close what the zygote had open. The driver's own files stay: NVML opened them, and CUDA would use them closed."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            if fd > 3 and not os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                os.close(fd)


class Zygote:
    """Serves one judge over `connection`."""

    def __init__(self, connection: Connection, kind: str) -> None:
        self._connection = connection
        self._kind = kind
        self._pid: int | None = None
        self._uid: int | None = None
        self._namespaces = False
        self._hidden: dict[str, list[str]] = {}

    def serve(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(read_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        level = sandbox.level()
        self._namespaces = level == "uid+ns"
        if level != "same-uid":
            self._hidden = sandbox.hidden_runtime()
        unreadable = [path for directory, paths in self._hidden.items() if directory != "/tmp" for path in paths]
        if level == "uid" and unreadable:
            raise SystemExit(f"submissions run as another user, who cannot read {', '.join(unreadable)}")
        self._connection.send(ZygoteReady(level))
        selector = selectors.DefaultSelector()
        selector.register(self._connection.fileno(), selectors.EVENT_READ)
        selector.register(read_end, selectors.EVENT_READ)
        try:
            while True:
                selector.select()
                with contextlib.suppress(BlockingIOError):
                    os.read(read_end, 4096)
                self._report_exits()
                if any(key.fd != read_end for key, _ in selector.select(0)):
                    self._connection.read(accept_fds=True)
                while (request := self._connection.pop()) is not None:
                    self._handle(request)
        except PeerClosed:
            return
        finally:
            sandbox.kill_descendants(os.getpid(), self._uid)

    def _handle(self, request: ZygoteRequest) -> None:
        if isinstance(request, KillAll):
            sandbox.kill_descendants(os.getpid(), self._uid)
            self._pid = None
            self._connection.send(Killed())
            return
        control, output = self._connection.take_fds()
        self._uid = request.uid
        pid = os.fork()
        if pid == 0:
            _child(self._kind, request, control, output, self._namespaces, self._hidden)
        os.close(control)
        os.close(output)
        self._pid = pid
        self._connection.send(Spawned(pid))

    def _report_exits(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._pid = None
                code = os.waitstatus_to_exitcode(status)
                self._connection.send(Exited(pid, signal=-code) if code < 0 else Exited(pid, code=code))


def main() -> None:
    fd, kind = int(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("ignore")
    sandbox.become_subreaper()
    sandbox.make_undumpable()
    connection = Connection(socket.socket(fileno=fd), ZygoteRequest)
    warm_up()
    Zygote(connection, kind).serve()


if __name__ == "__main__":
    main()
