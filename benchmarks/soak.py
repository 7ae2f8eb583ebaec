"""A server under fire: many sessions submit right, wrong and harmful kernels while its parts are killed from outside.

Starts a server of its own, talks to it through `kernel_env.KernelEnv`, injects a fault every few seconds, and accounts
at the end for every step and for everything that could leak. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from episodes import machine  # noqa: E402
from soak_faults import Faults  # noqa: E402
from soak_mix import KINDS, TRITON_TASKS, Deck, Submission, make  # noqa: E402
from soak_report import checks, leaks, report, summarise  # noqa: E402
from soak_server import Server, get, masked, place, processes  # noqa: E402

from kernel_env.client import KernelEnv  # noqa: E402
from kernel_env.errors import KernelEnvError  # noqa: E402
from kernel_env.models import KernelAction, KernelObservation  # noqa: E402

RESULT_FILE = "soak.json"
SETTINGS = {
    "cpu": {
        "KERNEL_ENV_JUDGES_PER_GPU": "2",
        "KERNEL_ENV_TRIALS": "2",
        "KERNEL_ENV_TIMED_RUNS": "3",
        "KERNEL_ENV_RUN_TIMEOUT_S": "10",
    },
    "gpu": {"KERNEL_ENV_RUN_TIMEOUT_S": "10"},
    "mock": {},
}
# Steps in work for each worker: the rest of the sessions are open and wait for their turn, as a trainer's do while the
# model writes.
STEPS_PER_WORKER = 4
CONNECTING_AT_ONCE = 32
STEPS_A_CONNECTION = 20
MAX_FROZEN = 32
# The server pings every 20 s and gives up a client that has not answered for 300 s.
REAPED_AFTER_S = 340.0
CLIENT_TIMEOUT_S = 1800.0
# After the last submission: as long as a step may take, and a judge that hangs.
DRAIN_S = 280.0
SETTLE_S = 90.0
# So much longer goes a run in which not every kind of submission and of fault has come up.
COVER_S = 120.0
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
        self.over = False
        self.hold: set[str] = set()
        self._url = server.url
        self._evaluator = evaluator
        self._deck = Deck(evaluator, seed)
        workers = len(server.first_status["workers"])
        self._turns = asyncio.Semaphore(STEPS_PER_WORKER * workers if workers else sessions)
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
        while not self.over:
            try:
                await self._connection()
            except (KernelEnvError, ConnectionError) as error:
                self.broken.append(f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1.0)

    def covered(self) -> bool:
        """Whether every kind of submission has been sent and is over."""
        return {entry.kind for entry in self.entries if entry.state != "open"} >= set(self._deck.kinds)

    async def compilers_idle(self) -> None:
        """See Faults."""
        self.hold.add("good C++")
        while any(entry.state == "open" and entry.kind == "good C++" for entry in self.entries):
            await asyncio.sleep(0.05)
        self.hold.clear()

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
                async with self._turns:
                    if self.over or not await self._play(env, self._deck.draw(self.hold)):
                        return

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
            now = processes().get(process.pid)
            if now is None or now.started != process.started:
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


# ---------------------------------------------------------------- the run


async def inject(faults: Faults, every_s: float, crowd: Crowd, server: Server) -> None:
    """A fault every so many seconds, of each kind in turn; those that last do not hold up the ones that follow.

    Not while no worker can evaluate: where starting a judge takes longer than that, none would ever be up again.
    """
    running: set[asyncio.Task[None]] = set()
    number = 0
    while not crowd.over:
        kind = faults.kinds[number % len(faults.kinds)]
        if all(record["kind"] != kind or record["ended"] for record in faults.records):
            task = asyncio.create_task(faults.inject(kind))
            running.add(task)
            task.add_done_callback(running.discard)
        number += 1
        end = time.monotonic() + every_s
        while not crowd.over and (time.monotonic() < end or not await asyncio.to_thread(is_ready, server)):
            await asyncio.sleep(0.1)
    await asyncio.gather(*running)


def is_ready(server: Server) -> bool:
    """Whether some worker can evaluate."""
    ready = get(f"{server.url}/ready")
    return ready is not None and ready["ready"]


async def settle(server: Server, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The status once nothing is in work, every worker is there and nothing is more than `before`; the last one where
    that does not come. A connection that is being closed, say, is no leak: what stays is."""
    end = time.monotonic() + SETTLE_S
    while True:
        status = await asyncio.to_thread(server.status)
        quiet = status.get("sessions", {}).get("open") == 0 and status.get("queue_depth") == 0
        if quiet and all(worker["state"] == "idle" for worker in status["workers"]):
            sample = await asyncio.to_thread(server.sample)
            found = status | {"sample": sample}
            complete = not sample["strangers"] and sample["processes"]["zygotes"] == len(status["workers"])
            if complete and (before is None or not leaks({"before": before, "after": found})):
                return found
        if time.monotonic() > end:
            return status | {"sample": await asyncio.to_thread(server.sample)}
        await asyncio.sleep(0.3)


async def soak(server: Server, arguments: argparse.Namespace, result: dict[str, Any]) -> tuple[Crowd, Faults]:
    """Warm up, look, submit and inject until the time is over, let everything end, and look again."""
    crowd = Crowd(server, arguments.evaluator, arguments.sessions, arguments.seed)
    await crowd.warm_up(arguments.sessions)
    result["before"] = await settle(server)
    faults = Faults(server, arguments.evaluator, arguments.seed, crowd.compilers_idle)
    result["began"] = time.time()
    print(f"warm after {len(crowd.entries)} steps; {arguments.sessions} sessions, faults: {faults.kinds}", flush=True)
    tasks = [asyncio.create_task(crowd.session()) for _ in range(arguments.sessions)]
    injecting = asyncio.create_task(inject(faults, arguments.every, crowd, server))
    end = time.monotonic() + arguments.seconds
    while not injecting.done():
        left_s = end - time.monotonic()
        if left_s < 0 and (left_s < -COVER_S or (crowd.covered() and faults.covered())):
            break
        await asyncio.sleep(min(10.0, max(1.0, left_s)))
        ready = await asyncio.to_thread(get, f"{server.url}/ready")
        reason = None if ready is None else ready["reason"]
        print(f"{len(crowd.entries)} steps, {len(faults.records)} faults, not ready: {reason}", flush=True)
    crowd.over = True
    await injecting
    result["ended"] = time.time()
    # Clients that are frozen have a call open on purpose.
    _, late = await asyncio.wait(tasks, timeout=DRAIN_S)
    result["sessions that did not end"] = len(late)
    await crowd.thaw()
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    result["after"] = await settle(server, result["before"])
    return crowd, faults


def main() -> int:
    """Run it; the exit code is soak_report.report's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {RESULT_FILE} and the server's logs")
    parser.add_argument("--evaluator", choices=["gpu", "cpu", "mock"], default="gpu")
    parser.add_argument("--sessions", type=int, default=256, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long submissions are sent")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=0, help="of the order of submissions and faults")
    arguments = parser.parse_args()
    # A time limit from outside must still end the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"evaluator": arguments.evaluator, "machine": machine(), "sessions": arguments.sessions}
    result["machine"]["cores"] = len(os.sched_getaffinity(0))
    # Frozen clients and those that the server has not missed yet hold a slot too.
    slots = {"KERNEL_ENV_MAX_SESSIONS": str(2 * arguments.sessions + MAX_FROZEN)}
    settings = {"KERNEL_ENV_EVALUATOR": arguments.evaluator, **SETTINGS[arguments.evaluator], **slots}
    with place(arguments.out, arguments.evaluator) as where:
        try:
            server = Server(where, settings)
        except RuntimeError as error:
            print(f"FAIL {error}", flush=True)
            return 1
        try:
            crowd, faults = asyncio.run(soak(server, arguments, result))
            result["stop"] = server.stop()
        finally:
            server.kill()
    log = [json.loads(line) for line in where.log.read_text(encoding="utf-8").splitlines()]
    result["summary"] = summarise(crowd, faults, log, result)
    result["checks"] = checks(result)
    (arguments.out / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return report(result)


if __name__ == "__main__":
    sys.exit(main())
