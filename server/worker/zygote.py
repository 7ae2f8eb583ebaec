"""The fork server: torch and triton imported, CUDA untouched, one child a submission.

Trusted, and never runs submitted code itself. Started by the judge with an environment that holds nothing secret,
because its children can read it in /proc. It ends when the judge's socket closes, and takes every process below it
along.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import warnings

from server.worker import extension_kit, sandbox

if __name__ == "__main__":
    # Before torch: only a process without threads can do it.
    sandbox.enter_user_namespace()

import torch
import torch.utils.cpp_extension  # noqa: F401  imported here so that children have it

from server.worker import vmm  # noqa: F401  children could not import it later: they do not see the project's files
from server.worker.candidate import serve
from server.worker.connection import Connection, PeerClosed
from server.worker.device import create_device
from server.worker.guard import warm_up
from server.worker.level import LANDLOCK, UID
from server.worker.operators import Withdrawal
from server.worker.protocol import (
    CandidateRequest,
    Exited,
    Freeze,
    Frozen,
    KillAll,
    Killed,
    Spawn,
    Spawned,
    Thaw,
    ZygoteReady,
    ZygoteRequest,
)
from server.worker.sandbox import Sandbox

with contextlib.suppress(ImportError):  # the cpu evaluator can run without triton for C++ submissions
    import triton  # noqa: F401


def _child(
    kind: str, request: Spawn, control: int, output: int, entered: int, confinement: Sandbox, pytorch: Withdrawal
) -> None:
    """Becomes the candidate. Never returns. Writes to `entered` why it could not be confined, or closes it."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(control, 3)
        sandbox.close_inherited(keep=entered)
        try:
            if request.trusted:
                pytorch.undo()
            else:
                pytorch.complete()
            confinement.enter(request.workdir, request.memory_bytes, request.trusted, request.links)
        except BaseException as error:
            os.write(entered, f"{type(error).__name__}: {error}".encode())
            raise
        os.close(entered)
        kit = os.environ.pop(extension_kit.VARIABLE, None)
        # As the judge's user and without Landlock it could change the kit's modes, then its files, for the next one.
        if kit and {UID, LANDLOCK} & confinement.features:
            os.environ.update(extension_kit.environment(kit))
        if kind == "cpu":
            torch.set_num_threads(1)
        sys.path.insert(0, os.getcwd())
        connection = Connection(socket.socket(fileno=3), CandidateRequest)
        serve(connection, create_device(kind))
    finally:
        os._exit(0)


class Zygote:
    """Serves one judge over `connection`."""

    def __init__(self, connection: Connection, kind: str, confinement: Sandbox, pytorch: Withdrawal) -> None:
        self._connection = connection
        self._kind = kind
        self._sandbox = confinement
        self._pytorch = pytorch
        self._children = confinement.children()
        self._pid: int | None = None

    def serve(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(read_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._connection.send(ZygoteReady(str(self._sandbox), self._sandbox.uid))
        selector = selectors.DefaultSelector()
        selector.register(self._connection.fileno(), selectors.EVENT_READ)
        selector.register(read_end, selectors.EVENT_READ)
        try:
            while True:
                self._children.prepare()
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
            self._children.end()
            self._sandbox.clean_up()

    def _handle(self, request: ZygoteRequest) -> None:
        if isinstance(request, KillAll):
            self._children.end()
            self._sandbox.clean_up()
            self._pid = None
            self._connection.send(Killed())
            return
        if isinstance(request, Freeze):
            # Others of its processes may live longer than the first.
            if request.everything or self._pid is not None:
                self._freeze(None if request.everything else self._pid)
            self._connection.send(Frozen())
            return
        if isinstance(request, Thaw):
            self._children.thaw()
            return
        control, output = self._connection.take_fds()
        read_end, write_end = os.pipe()
        pid = self._children.fork()
        if pid == 0:
            _child(self._kind, request, control, output, write_end, self._sandbox, self._pytorch)
        for fd in (control, output, write_end):
            os.close(fd)
        error = os.read(read_end, 4096)
        os.close(read_end)
        if error:
            # A fault of ours. Were the child left to end by itself, it would look like the submission's doing.
            raise RuntimeError(f"a candidate could not be confined: {error.decode(errors='replace')}")
        self._pid = pid
        self._connection.send(Spawned(pid))

    def _freeze(self, only: int | None) -> None:
        try:
            self._children.freeze(only)
        except TimeoutError:
            # Others wait for it to be stopped.
            self._children.end()
            pid, self._pid = self._pid, None
            if pid is not None:
                self._connection.send(Exited(pid, signal=signal.SIGKILL, unstoppable=True))

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
    device = create_device(kind)
    pytorch = Withdrawal(device.torch_device)

    def use_device() -> None:
        pytorch.complete()
        torch.zeros(1, device=device.torch_device)

    try:
        confinement, claim = sandbox.probe(use_device)
    except (RuntimeError, OSError) as error:
        connection.send(ZygoteReady(error=str(error)))
        return
    with claim or contextlib.nullcontext():
        # So that no child's collections walk through, and by that copy, what all of them share.
        gc.collect()
        gc.freeze()
        Zygote(connection, kind, confinement, pytorch).serve()


if __name__ == "__main__":
    main()
