"""Who may use a GPU: several judges share it while submissions compile and run their trials, one has it to itself while
it times.

Bookkeeping under a lock, for the worker threads of one GPU; touches nothing but the `send` functions it is given.
A judge asks with Want. While one has the GPU to itself, or waits for that, the others are told to pause, and the wait
ends when all have answered. Memory is handed out in the order of asking, and whoever is alone gets what he asks for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from server.worker.protocol import Grant, Pause

Send = Callable[[Grant | Pause], None]
Use = Literal["shared", "alone"]


class _State(Enum):
    OUT = auto()  # holds nothing
    WAITING = auto()  # for its share of the memory
    SHARED = auto()
    PAUSING = auto()  # was told to
    PAUSED = auto()
    QUEUED = auto()  # paused, and wants the GPU to itself
    ALONE = auto()


@dataclass
class _Member:
    send: Send
    state: _State = _State.OUT
    memory_bytes: int = 0


class Lease:
    """The lease of one GPU. Workers are known by their numbers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity_bytes: int | None = None
        """What the judges together may hold; None for no limit."""
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._waiting: list[int] = []
        self._queued: list[int] = []
        self._clock = clock
        self._created = self._since = clock()
        self._use: Use | None = None
        self._used_s: dict[Use, float] = {"shared": 0.0, "alone": 0.0}

    def join(self, worker: int, send: Send) -> None:
        """Take part. `send` is called under the lease's lock and must neither block nor raise."""
        with self._lock:
            self._members[worker] = _Member(send)

    def leave(self, worker: int) -> None:
        """End taking part: the judge is gone."""
        with self._lock:
            self._forget(worker)
            self._members.pop(worker, None)
            self._advance()

    def release(self, worker: int) -> None:
        """Give back everything: the evaluation is over."""
        with self._lock:
            self._forget(worker)
            self._advance()

    def want(self, worker: int, alone: bool, memory_bytes: int) -> None:
        """Ask for a share of the GPU with so much memory, or to have it alone (keeping the memory).

        A share that is no larger than what is held is had without waiting for memory.
        """
        with self._lock:
            member = self._members[worker]
            held = member.memory_bytes
            keeps = member.state not in (_State.OUT, _State.WAITING) and (alone or held >= memory_bytes)
            self._forget(worker)
            if keeps:
                member.memory_bytes = held if alone else memory_bytes
                member.state = _State.QUEUED if alone else _State.PAUSED
                if alone:
                    self._queued.append(worker)
            else:
                member.memory_bytes, member.state = memory_bytes, _State.WAITING
                self._waiting.append(worker)
            self._advance()

    def paused(self, worker: int) -> None:
        """The judge has paused. Of no consequence when it was not asked to, or has asked for something else since."""
        with self._lock:
            member = self._members.get(worker)
            if member is not None and member.state is _State.PAUSING:
                member.state = _State.PAUSED
                self._advance()

    def holders(self) -> dict[int, str]:
        """The state of each worker, for the status endpoint."""
        with self._lock:
            return {worker: member.state.name.lower() for worker, member in self._members.items()}

    def used_seconds(self) -> dict[Use, float]:
        """For how long judges have held the GPU, one of them alone or some shared, since the lease was made."""
        with self._lock:
            self._account()
            return dict(self._used_s)

    def age_seconds(self) -> float:
        """For how long there has been this lease."""
        return self._clock() - self._created

    def _forget(self, worker: int) -> None:
        for numbers in (self._waiting, self._queued):
            if worker in numbers:
                numbers.remove(worker)
        if worker in self._members:
            self._members[worker].state = _State.OUT
            self._members[worker].memory_bytes = 0

    def _in(self, *states: _State) -> list[_Member]:
        return [member for member in self._members.values() if member.state in states]

    def _account(self) -> None:
        """Add the time since the last change to what the GPU was used for until now."""
        now = self._clock()
        if self._use is not None:
            self._used_s[self._use] += now - self._since
        self._since = now
        holds_alone, share = self._in(_State.ALONE), self._in(_State.SHARED, _State.PAUSING)
        self._use = "alone" if holds_alone else "shared" if share else None

    def _advance(self) -> None:
        """Send whatever has become due."""
        self._send_due()
        self._account()

    def _send_due(self) -> None:
        if self._in(_State.ALONE):
            return
        if self._queued:
            for member in self._in(_State.SHARED):
                member.state = _State.PAUSING
                member.send(Pause())
            if not self._in(_State.PAUSING):
                self._grant(self._members[self._queued.pop(0)], _State.ALONE)
            return
        for member in self._in(_State.PAUSED):
            self._grant(member, _State.SHARED)
        while self._waiting and self._fits(self._members[self._waiting[0]].memory_bytes):
            self._grant(self._members[self._waiting.pop(0)], _State.SHARED)

    def _fits(self, memory_bytes: int) -> bool:
        held = [m.memory_bytes for m in self._members.values() if m.state not in (_State.OUT, _State.WAITING)]
        return self.capacity_bytes is None or not held or sum(held) + memory_bytes <= self.capacity_bytes

    @staticmethod
    def _grant(member: _Member, state: _State) -> None:
        member.state = state
        member.send(Grant())
