"""The sessions of benchmarks/soak.py: what they send, how they misbehave, and their own books of what was answered.

Touches the network, and looks at the server's processes (soak_server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

from soak_mix import KINDS, TRITON_TASKS, Deck, Submission, make
from soak_server import Server, masked, processes

from kernel_env.client import KernelEnv
from kernel_env.errors import KernelEnvError
from kernel_env.models import KernelAction, KernelObservation

# Steps in work for each worker: the rest of the sessions are open and wait for their turn, as a trainer's do while the
# model writes. On a GPU its eight judges share one device, and at the end all that was begun has to end.
STEPS_PER_WORKER = {"cpu": 4, "gpu": 2}
# How long a session of an evaluator without workers waits between two steps, on average.
THINK_S = 10.0
CONNECTING_AT_ONCE = 32
STEPS_A_CONNECTION = 20
MAX_FROZEN = 32
# The server pings every 20 s and gives up a client that has not answered for 300 s.
REAPED_AFTER_S = 340.0
CLIENT_TIMEOUT_S = 1800.0
_APPEARS_S = 60.0


@dataclass
class Entry:
    """One step in the clients' own books. Times are time.time()."""

    kind: str
    nonce: str
    sha256: str
    sent: float = 0.0
    state: str = "open"
    """'answered', 'vanished' or 'frozen' (by intention), 'lost' (against it)."""
    ended: float | None = None
    began: bool = False
    """Whether its process was seen running."""
    freed_s: float | None = None
    """How long its process lived on when its client had vanished."""
    answer: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Crowd:
    """The sessions, and what they have sent and were answered."""

    def __init__(self, server: Server, evaluator: str, sessions: int, seed: int) -> None:
        self.entries: list[Entry] = []
        self.broken: list[str] = []
        self.frozen: list[tuple[KernelEnv, float, asyncio.Future[None]]] = []
        self.reaped: list[bool] = []
        self.over = asyncio.Event()
        self._held: set[str] = set()
        self._first: list[str] = []
        self._url = server.url
        self._evaluator = evaluator
        self._deck = Deck(evaluator, seed)
        self._random = random.Random(seed)
        workers = len(server.first_status["workers"])
        self._turns = asyncio.Semaphore(STEPS_PER_WORKER[evaluator] * workers if workers else sessions)
        self._think_s = 0.0 if workers else THINK_S
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def warm_up(self, sessions: int) -> None:
        """Everything that grows once, grows: so many sessions at a time, and each task and language on every worker."""
        await asyncio.gather(*(self._connect_and_close() for _ in range(sessions)))
        kinds = [kind for kind in self._deck.kinds if KINDS[kind].reward != "none"]
        cards = [make(kind, TRITON_TASKS[0], self._evaluator) for kind in kinds]
        cards += [make("good", task_id, self._evaluator) for task_id in TRITON_TASKS for _ in range(4)]

        async def one(submission: Submission) -> None:
            async with self._turns, self._client() as env:
                await self._play(env, submission)

        await asyncio.gather(*(one(submission) for submission in cards))

    async def session(self) -> None:
        """Submit until the time is over, over one connection after the other."""
        while not self.over.is_set():
            try:
                await self._connection()
            except (KernelEnvError, ConnectionError) as error:
                self.broken.append(f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1.0)

    def steps_over(self) -> int:
        """How many steps have ended, one way or the other."""
        return sum(entry.state != "open" for entry in self.entries)

    def covered(self) -> bool:
        """Whether every kind of submission has been sent and is over."""
        return {entry.kind for entry in self.entries if entry.state != "open"} >= set(self._deck.kinds)

    async def compilers_idle(self) -> None:
        """See Faults."""
        self._held.add("good C++")
        while any(entry.state == "open" and entry.kind == "good C++" for entry in self.entries):
            await asyncio.sleep(0.05)
        self._held.clear()

    def compile_soon(self) -> None:
        """See Faults."""
        self._first.append("good C++")

    async def refused(self, slots: int) -> list[str]:
        """Take so many sessions at a time, which is all that there are; why some of them cannot be had."""
        reasons: list[str] = []

        async def take(stack: contextlib.AsyncExitStack) -> None:
            try:
                async with self._connecting:
                    stack.push_async_callback((await self._client().connect()).close)
            except (KernelEnvError, ConnectionError) as error:
                reasons.append(f"{type(error).__name__}: {error}"[:300])

        async with contextlib.AsyncExitStack() as stack:
            await asyncio.gather(*(take(stack) for _ in range(slots)))
        return reasons

    async def thaw(self) -> None:
        """See whether the server has given up the clients that have been frozen for long enough; then end them all."""
        for env, since, step in self.frozen:
            ws = env._ws
            assert ws is not None
            if time.time() - since > REAPED_AFTER_S:
                ws.transport.resume_reading()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ws.wait_closed(), 10.0)
                self.reaped.append(ws.close_code is not None)
            ws.transport.abort()
            await step

    def _client(self) -> KernelEnv:
        return KernelEnv(self._url, message_timeout_s=CLIENT_TIMEOUT_S)

    async def _connect_and_close(self) -> None:
        async with self._connecting, self._client() as env:
            await env.state()

    async def _connection(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with self._connecting:
                env = await self._client().connect()
            stack.push_async_callback(self._close, env)
            for _ in range(STEPS_A_CONNECTION):
                await self._think()
                async with self._turns:
                    if self.over.is_set() or not await self._play(env, self._deck.draw(self._held, self._first)):
                        return

    async def _think(self) -> None:
        """The time that a model takes to write the next submission; it is cut short at the end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), self._random.uniform(0.0, 2.0 * self._think_s))

    async def _close(self, env: KernelEnv) -> None:
        if all(env is not frozen for frozen, _, _ in self.frozen):
            await env.close()

    async def _play(self, env: KernelEnv, submission: Submission) -> bool:
        """One step; whether the connection is still of use."""
        await env.reset(task_id=submission.task_id, language=submission.language)
        entry = Entry(submission.kind, submission.nonce, hashlib.sha256(submission.code.encode()).hexdigest())
        entry.sent = time.time()
        self.entries.append(entry)
        step = asyncio.ensure_future(self._step(env, submission.code, entry))
        if submission.kind == "client vanishes":
            await self._vanish(env, submission, entry, step)
        elif submission.kind == "client freezes" and len(self.frozen) < MAX_FROZEN:
            await self._freeze(env, entry, step)
        else:
            await step
        return entry.state == "answered"

    async def _step(self, env: KernelEnv, code: str, entry: Entry) -> None:
        try:
            observation = (await env.step(KernelAction(code=code))).observation
            entry.answer, entry.ended = _kept(observation), time.time()
            if entry.state == "open":
                entry.state = "answered"
        except (KernelEnvError, ConnectionError) as error:
            if entry.state == "open":
                entry.state, entry.error, entry.ended = "lost", f"{type(error).__name__}: {error}"[:300], time.time()

    async def _vanish(self, env: KernelEnv, submission: Submission, entry: Entry, step: asyncio.Future[None]) -> None:
        """Go without a word, once the submission runs."""
        pid, end = None, time.monotonic() + _APPEARS_S
        await asyncio.sleep(0.002)
        while self._evaluator != "mock" and not step.done() and pid is None and time.monotonic() < end:
            pid = await asyncio.to_thread(masked, submission.mark)
            await asyncio.sleep(0.05)
        process = processes().get(pid) if pid is not None else None
        if step.done() and entry.state != "open":
            return
        entry.state, entry.began = "vanished", process is not None
        gone = time.monotonic()
        ws = env._ws
        if ws is not None:
            ws.transport.abort()
        entry.ended = time.time()
        while process is not None and time.monotonic() < gone + _APPEARS_S:
            if not process.is_alive():
                entry.freed_s = round(time.monotonic() - gone, 3)
                break
            await asyncio.sleep(0.02)
        await step

    async def _freeze(self, env: KernelEnv, entry: Entry, step: asyncio.Future[None]) -> None:
        """Stop reading and answering, with the socket open; what the server says stays unheard."""
        await asyncio.sleep(0)
        ws = env._ws
        if step.done() or ws is None:
            await step
            return
        ws.transport.pause_reading()
        entry.state, entry.ended = "frozen", time.time()
        self.frozen.append((env, entry.ended, step))
        # The call stays open until the end: ending it would close the socket.


def _kept(observation: KernelObservation) -> dict[str, Any]:
    """What is compared with the log's line, and what a check needs."""
    names = {"outcome", "stage", "reward", "infra_code", "feedback", "phase_seconds", "turn", "t_new_ms", "t_ref_ms"}
    return json.loads(observation.model_dump_json(include=names))
