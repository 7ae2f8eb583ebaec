"""The judge's side of its children: the zygote, and one candidate at a time.

Every wait here has a deadline, listens to the server at the same time (so that an evaluation can be cancelled), drains
what the candidate prints, and notices when it dies.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn, TypeVar

from server.worker import overdue
from server.worker.candidate_environment import candidate_environment
from server.worker.children import is_stopped
from server.worker.connection import Connection, DeadlineExceeded, PeerClosed, PeerViolation
from server.worker.ended import name, oom_kills, sent_by_somebody
from server.worker.lease import GpuLease, InfrastructureFault
from server.worker.protocol import (
    CandidateReply,
    CandidateRequest,
    Exited,
    Failed,
    Freeze,
    Frozen,
    KillAll,
    Killed,
    Spawn,
    Spawned,
    Thaw,
    ZygoteReady,
    ZygoteReply,
)

T = TypeVar("T")

OUTPUT_LIMIT = 16 << 20
_OUTPUT_KEPT = 2000
_START_TIMEOUT_S = 120.0
# To fork a candidate, which takes milliseconds, and to be read.
_SPAWN_TIMEOUT_S = 20.0
_FREEZE_TIMEOUT_S = 60.0
# How often it is looked at meanwhile: a zygote that somebody stopped will not answer.
_LOOK_S = 1.0
# To end a candidate and all it started. Less, but as much as the second, where the evaluation must be over before.
_KILL_TIMEOUT_S = 20.0
_MIN_KILL_TIMEOUT_S = 3.0
# A thousand parameters' names fit in; decoding a message made to be slow takes the square of its length.
_REPLY_LIMIT = 512 << 10

# The failures a candidate may report of itself: values of kernel_env.models.Outcome that candidate.classify gives.
_OWN_FAULTS = frozenset(
    "syntax_error import_error missing_model compile_error construction_error runtime_error format_violation "
    "wrong_structure out_of_memory exited".split()
)


class SubmissionFailed(Exception):
    """The submission's own doing. `outcome` is a value of kernel_env.models.Outcome."""

    def __init__(self, outcome: str, message: str, signal: int | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.signal = signal
        """Of a process that was ended by one, its own or a compiler, if anybody can have sent it."""


class Zygote:
    """The fork server's process, seen from the judge. Raises InfrastructureFault when it is lost.

    `sandbox` is the level its candidates get, `uid` the user they run as (None: this one's). `unfit` says, when it is
    not empty, why no other candidate can be had from it.
    """

    def __init__(self, kind: str, capability: str | None, compiling: dict[str, str] | None = None) -> None:
        """Starts it and does not wait; `compiling` is what extension_kit.for_zygote adds to the environment."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server.worker.zygote", str(theirs.fileno()), kind],
            env=candidate_environment(kind, capability) | (compiling or {}),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.connection = Connection(ours, ZygoteReply)
        self.exited: Exited | None = None
        self.unfit = ""
        self.pid = 0
        self.sandbox: str = ""
        self.uid: int | None = None

    def wait_ready(self) -> None:
        """Wait until it can fork, which comes before all else.

        Raises:
            RuntimeError: it cannot confine its children as it must.
        """
        ready = self._expect(ZygoteReady, _START_TIMEOUT_S)
        if ready.error is not None:
            self.close()
            raise RuntimeError(ready.error)
        self.sandbox, self.uid = ready.sandbox, ready.uid

    def spawn(self, request: Spawn, control: socket.socket, output: int) -> None:
        if self.unfit:
            raise InfrastructureFault("zygote_lost", self.unfit)
        self.exited = None
        self._send(request, [control.fileno(), output])
        self.pid = self._expect(Spawned, _SPAWN_TIMEOUT_S).pid

    def kill_all(self, timeout_s: float) -> None:
        """End and reap every process below the zygote; sets `unfit` when that fails, and raises nothing.

        What has been found out about the submission is true all the same.
        """
        try:
            self._send(KillAll(), [])
            self._expect(Killed, timeout_s)
        except InfrastructureFault as fault:
            self.unfit = f"a submission's processes could not be ended: {fault.detail}"

    def freeze(self, everything: bool) -> None:
        """Stop the candidate's first process, or all of them."""
        self._send(Freeze(everything), [])
        self._expect(Frozen, _FREEZE_TIMEOUT_S)

    def thaw(self) -> None:
        """Let them go on."""
        self._send(Thaw(), [])

    def poll_exit(self) -> None:
        """Read what has arrived; sets `exited` when the candidate ended."""
        try:
            self.connection.read(time.monotonic() + 1.0)
            self._note_exits()
        except (PeerClosed, PeerViolation) as error:
            raise InfrastructureFault("zygote_lost", repr(error)) from error
        except DeadlineExceeded:
            return

    def check(self) -> None:
        """Raises InfrastructureFault if it is gone, or somebody has stopped it."""
        if self._process.poll() is not None or is_stopped(self._process.pid):
            raise InfrastructureFault("zygote_lost", "it has ended, or was stopped")

    def _note_exits(self) -> None:
        while (message := self.connection.pop()) is not None:
            if isinstance(message, Exited):
                self.exited = message

    def close(self) -> None:
        """Close the connection, on which the zygote ends its children and itself."""
        self.connection.close()
        try:
            self._process.wait(0 if is_stopped(self._process.pid) else _KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: Spawn | KillAll | Freeze | Thaw, fds: list[int]) -> None:
        try:
            self.connection.send(message, fds, time.monotonic() + _SPAWN_TIMEOUT_S)
        except (PeerClosed, DeadlineExceeded) as error:
            raise InfrastructureFault("zygote_lost", repr(error)) from error

    def _expect(self, kind: type[T], timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        overdue.allow(timeout_s)
        try:
            while True:
                try:
                    message = self.connection.recv(min(deadline, time.monotonic() + _LOOK_S))
                except DeadlineExceeded:
                    self.check()
                    if time.monotonic() >= deadline:
                        raise
                    continue
                if isinstance(message, Exited):
                    self.exited = message
                if isinstance(message, kind):
                    # An exit that came in one piece with the answer would never be seen by a poll of the socket.
                    self._note_exits()
                    return message
        except (PeerClosed, PeerViolation, DeadlineExceeded) as error:
            raise InfrastructureFault("zygote_lost", repr(error)) from error


class CandidateProcess:
    """One forked candidate. Use as a context manager: leaving it ends every process the candidate started."""

    def __init__(
        self,
        zygote: Zygote,
        lease: GpuLease,
        spawn: Spawn,
        end: float = math.inf,
        fair_share_s: float = math.inf,
    ) -> None:
        """Fork it.

        Args:
            end: when the evaluation must be over, by time.monotonic().
            fair_share_s: a submission that was waited for as long as this by then was too slow; one that was not, lost
                its time to us, and the fault is ours.
        """
        self._zygote = zygote
        self._lease = lease
        self._end = end
        self._fair_share_s = fair_share_s
        self._waited_s = 0.0
        self.compiles = False
        """Whether a pause leaves its other processes alone: compilers, which do not use the GPU."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection = Connection(ours, CandidateReply, _REPLY_LIMIT)
        self._output, write_end = os.pipe()
        os.set_blocking(self._output, False)
        self._printed = 0
        self._head = b""
        self._oom_kills_before = oom_kills()
        self._poll = select.poll()
        try:
            zygote.spawn(spawn, theirs, write_end)
        except BaseException:
            self._connection.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        for fd in (self._connection.fileno(), self._output, zygote.connection.fileno()):
            self._poll.register(fd, select.POLLIN)
        if (server := lease.fileno()) is not None:
            self._poll.register(server, select.POLLIN)
        lease.candidate = self

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._lease.candidate = None
        self._connection.close()
        os.close(self._output)
        left_s = self._end - time.monotonic()
        self._zygote.kill_all(max(_MIN_KILL_TIMEOUT_S, min(left_s, _KILL_TIMEOUT_S)))

    def freeze(self) -> None:
        """Stop it (SIGSTOP) until `thaw`."""
        self._zygote.freeze(everything=not self.compiles)

    def thaw(self) -> None:
        """Let it go on."""
        self._zygote.thaw()

    def printed(self) -> str:
        """The beginning of what the candidate printed."""
        return self._head.decode("utf-8", "replace")

    def send(self, request: CandidateRequest, timeout_s: float, fds: list[int] | None = None) -> None:
        """Send a request.

        Raises:
            SubmissionFailed: it has died, does not read, or has spoken out of turn.
        """
        if self._connection.has_buffered():
            self._check_alive()
            raise SubmissionFailed("protocol_error", "The submission's process sent data that nobody asked for.")
        try:
            self._connection.send(request, fds, time.monotonic() + timeout_s)
        except PeerClosed:
            self._raise_death()
        except DeadlineExceeded:
            raise SubmissionFailed("timeout", "The submission's process stopped answering.") from None

    def wait(self, kind: type[T], timeout_s: float, what: str) -> T:
        """Wait for the reply `kind`.

        Raises:
            SubmissionFailed: it failed, died, printed too much, or did not answer within `timeout_s`.
            Cancelled, ServerGone, InfrastructureFault: as their names say.
        """
        began = time.monotonic()
        deadline = min(began + timeout_s, self._end)
        paused_s = 0.0
        while True:
            try:
                message = self._connection.pop()
            except PeerViolation as error:
                raise SubmissionFailed("protocol_error", f"The submission's process sent garbage: {error}") from error
            if message is not None:
                if isinstance(message, kind):
                    self._waited_s += time.monotonic() - began - paused_s
                    return message
                if isinstance(message, Failed):
                    # Never an outcome that would blame the server or the task, and so cost nothing.
                    outcome = message.outcome if message.outcome in _OWN_FAULTS else "protocol_error"
                    raise SubmissionFailed(outcome, message.message, sent_by_somebody(message.signal))
                raise SubmissionFailed("protocol_error", "The submission's process answered out of turn.")
            remaining = deadline - time.monotonic()
            if remaining <= 0 and time.monotonic() >= self._end:
                if self._waited_s + time.monotonic() - began - paused_s < self._fair_share_s:
                    raise InfrastructureFault("step_deadline", f"{what} did not finish within the step's deadline")
                raise SubmissionFailed(
                    "timeout",
                    "The submission is too slow: its calls together did not finish within the step's deadline.",
                )
            if remaining <= 0:
                raise SubmissionFailed("timeout", f"{what} did not finish within {timeout_s:.0f} s and was ended.")
            overdue.allow(remaining)
            ready = {fd for fd, _ in self._poll.poll(max(1, int(remaining * 1000)))}
            overdue.allow()
            if self._connection.fileno() in ready:
                try:
                    self._connection.read(deadline)
                except (PeerClosed, DeadlineExceeded):
                    self._raise_death()
            if self._output in ready:
                self._drain()
            if self._lease.fileno() in ready:
                here_s = self._lease.listen()
                paused_s += here_s
                deadline = min(deadline + here_s, self._end)
                if self._connection.fileno() not in ready:
                    self._check_alive()  # the zygote may have said so during the pause
            if self._zygote.connection.fileno() in ready:
                self._zygote.poll_exit()
                if self._connection.fileno() not in ready:
                    self._check_alive()

    def call(self, request: CandidateRequest, kind: type[T], timeout_s: float, what: str) -> T:
        self.send(request, timeout_s)
        return self.wait(kind, timeout_s, what)

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._poll.unregister(self._output)
                return
            self._printed += len(data)
            if len(self._head) < _OUTPUT_KEPT:
                self._head += data[: _OUTPUT_KEPT - len(self._head)]
            if self._printed > OUTPUT_LIMIT:
                raise SubmissionFailed(
                    "output_limit",
                    f"The submission printed more than {OUTPUT_LIMIT >> 20} MiB. Remove the prints and submit again.",
                )

    def _check_alive(self) -> None:
        if self._zygote.exited is not None:
            self._raise_death()

    def _raise_death(self) -> NoReturn:
        deadline = time.monotonic() + 5.0
        while self._zygote.exited is None and time.monotonic() < deadline:
            overdue.allow(1.0)
            if select.select([self._zygote.connection], [], [], 0.5)[0]:
                self._zygote.poll_exit()
        exited = self._zygote.exited
        if exited is None:
            self._zygote.check()
            raise SubmissionFailed("protocol_error", "The submission's process closed its connection to the judge.")
        if exited.unstoppable:
            raise SubmissionFailed(
                "crashed",
                "The submission's processes would not stop while the GPU was another's, and were ended.",
            )
        if exited.signal == signal.SIGKILL and oom_kills() > self._oom_kills_before:
            raise SubmissionFailed(
                "out_of_memory", "The submission's process was ended by the kernel, because the host's memory ran out."
            )
        if exited.signal is not None:
            raise SubmissionFailed(
                "crashed",
                f"The submission's process was ended by {name(exited.signal)}.",
                sent_by_somebody(exited.signal),
            )
        raise SubmissionFailed(
            "exited", f"The submission ended its own process with exit code {exited.code} before it returned a result."
        )
