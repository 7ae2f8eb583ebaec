"""The judge's part of the lease of its GPU: asks for it, pauses when another judge is going to time, and hears a
cancellation meanwhile.

Everything the server says during an evaluation is heard here. server/lease.py decides.
"""

from __future__ import annotations

import math
import select
import time
from typing import Protocol

from server.worker import overdue
from server.worker.connection import Connection, DeadlineExceeded, PeerClosed
from server.worker.device import Device
from server.worker.protocol import Cancel, Grant, Pause, Paused, Want

# How long the GPU is left to the others before it is asked for again, when something of theirs would not end.
_RETRY_S = 0.5
_SEND_TIMEOUT_S = 10.0


class InfrastructureFault(Exception):
    """Ours. `code` is a value of kernel_env.models.InfraCode."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Cancelled(Exception):
    """The server dropped the evaluation."""


class ServerGone(Exception):
    """The server closed the connection: the judge ends."""


class Freezable(Protocol):
    """A candidate, as far as a pause concerns it."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class GpuLease:
    """What one judge holds of its GPU. Without a server it holds everything.

    Every method can raise Cancelled and ServerGone, and those that wait InfrastructureFault(step_deadline).

    `seconds` is what the evaluation has spent: waiting for a share ("lease_wait"), "paused", waiting for the GPU alone
    ("alone_wait"); "alone" since it has it.
    """

    def __init__(self, server: Connection | None, device: Device) -> None:
        self._server = server
        self._device = device
        self._eval_id = ""
        self._end = math.inf
        self._memory_bytes = 0
        self._holding = False
        self._alone_since: float | None = None
        self._seconds: dict[str, float] = {}
        self.candidate: Freezable | None = None

    def begin(self, eval_id: str, end: float) -> None:
        """A new evaluation, which must be over at `end` by time.monotonic(). The one before holds nothing any more."""
        self._eval_id, self._end = eval_id, end
        self._holding, self._alone_since, self._seconds, self._memory_bytes = False, None, {}, 0

    def seconds(self) -> dict[str, float]:
        """See the class."""
        return {name: round(value, 4) for name, value in (self._seconds | self._alone()).items()}

    def share(self, memory_bytes: int) -> None:
        """Wait for a share of the GPU with so much memory. No candidate may run."""
        self._end_alone()
        self._ask(Want(False, memory_bytes), "lease_wait")
        self._memory_bytes = memory_bytes

    def alone(self) -> None:
        """Wait until nothing else uses the GPU."""
        while True:
            self._freeze()
            self._ask(Want(True), "alone_wait")
            self._thaw()
            self._alone_since = time.monotonic()
            if self._device.is_quiet():
                return
            # Somebody's kernel runs on although its process is stopped. Its time limit stands still meanwhile.
            self._freeze()
            self._end_alone()
            self._ask(Want(False, self._memory_bytes), "alone_wait")
            self._thaw()
            resumed = time.monotonic() + _RETRY_S
            while (left_s := resumed - time.monotonic()) > 0:
                self.listen(left_s)

    def fileno(self) -> int | None:
        """The server's socket, to poll; None without a server."""
        return None if self._server is None else self._server.fileno()

    def listen(self, timeout_s: float = 0.0) -> float:
        """Hear the server out, waiting so long for it to say something; the seconds that were spent in a pause."""
        overdue.allow()
        if self._server is None:
            return 0.0
        paused_s = 0.0
        while (message := self._next(timeout_s)) is not None:
            if isinstance(message, Pause) and self._holding:
                paused_s += self._pause()
            timeout_s = 0.0
        return paused_s

    def _pause(self) -> float:
        assert self._server is not None
        began = time.monotonic()
        self._freeze()
        self._say(Paused())
        self._wait_for_grant()
        self._thaw()
        return self._spent("paused", began)

    def _ask(self, want: Want, what: str) -> None:
        if self._server is not None:
            began = time.monotonic()
            # From here on a Pause is an old one.
            self._holding = False
            self._say(want)
            self._wait_for_grant()
            self._spent(what, began)
        self._holding = True

    def _wait_for_grant(self) -> None:
        while True:
            left_s = self._end - time.monotonic()
            message = self._next(left_s) if left_s > 0 else None
            if isinstance(message, Grant):
                return
            if message is None:
                raise InfrastructureFault("step_deadline", "the GPU did not become free within the step's deadline")

    def _next(self, timeout_s: float) -> Grant | Pause | None:
        """The server's next message, None when there is none in time."""
        assert self._server is not None
        end = time.monotonic() + timeout_s
        try:
            while True:
                while (message := self._server.pop()) is not None:
                    if isinstance(message, (Grant, Pause)):
                        return message
                    # One for an evaluation that has ended meanwhile is none of this one's business.
                    if isinstance(message, Cancel) and message.eval_id == self._eval_id:
                        raise Cancelled
                left_s = max(0.0, min(end - time.monotonic(), 3600.0))
                overdue.allow(left_s)
                ready = select.select([self._server.fileno()], [], [], left_s)[0]
                overdue.allow()
                if not ready:
                    return None
                self._server.read(time.monotonic() + 1.0)
        except PeerClosed as error:
            raise ServerGone from error
        except DeadlineExceeded:
            return None

    def _say(self, message: Want | Paused) -> None:
        assert self._server is not None
        try:
            self._server.send(message, deadline=time.monotonic() + _SEND_TIMEOUT_S)
        except (PeerClosed, DeadlineExceeded) as error:
            raise ServerGone from error

    def _freeze(self) -> None:
        if self.candidate is not None and self._server is not None:
            self.candidate.freeze()
        self._device.synchronize()

    def _thaw(self) -> None:
        if self.candidate is not None and self._server is not None:
            self.candidate.thaw()

    def _alone(self) -> dict[str, float]:
        if self._alone_since is None:
            return {}
        return {"alone": self._seconds.get("alone", 0.0) + time.monotonic() - self._alone_since}

    def _end_alone(self) -> None:
        self._seconds |= self._alone()
        self._alone_since = None

    def _spent(self, what: str, began: float) -> float:
        spent_s = time.monotonic() - began
        self._seconds[what] = self._seconds.get(what, 0.0) + spent_s
        return spent_s
