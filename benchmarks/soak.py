"""A server under fire: many sessions submit right, wrong and harmful kernels while its parts are killed from outside.

Starts a server of its own, talks to it through `kernel_env.KernelEnv`, injects a fault every few seconds, and accounts
at the end for every step and for everything that could leak. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from episodes import machine  # noqa: E402
from soak_crowd import MAX_FROZEN, Crowd  # noqa: E402
from soak_faults import Faults  # noqa: E402
from soak_report import checks, leaks, report, summarise  # noqa: E402
from soak_server import Server, get, place  # noqa: E402

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
# What a log may have before another is begun, in MiB: as little as brings that about every few seconds.
LOG_MB = {"cpu": 0.02, "gpu": 0.1, "mock": 0.5}
# After the last submission: as long as a step may take, and a judge that hangs.
DRAIN_S = 280.0
SETTLE_S = 90.0
# So much longer goes a run in which not every kind of submission and of fault has come up.
COVER_S = 120.0


async def inject(faults: Faults, every_s: float, enough: asyncio.Event, crowd: Crowd, server: Server) -> None:
    """A fault every so many seconds, of each kind in turn; those that last do not hold up the ones that follow.

    Not while no worker can evaluate, nor before some step has ended since the last: where starting a judge takes longer
    than that, none would ever be up again.
    """
    running: set[asyncio.Task[None]] = set()
    number = 0
    while not enough.is_set():
        kind = faults.kinds[number % len(faults.kinds)]
        if all(record["kind"] != kind or record["ended"] for record in faults.records):
            task = asyncio.create_task(faults.inject(kind))
            running.add(task)
            task.add_done_callback(running.discard)
        number += 1
        end, over = time.monotonic() + every_s, crowd.steps_over()
        while not enough.is_set():
            await asyncio.sleep(0.1)
            goes_on = crowd.steps_over() > over and await asyncio.to_thread(is_ready, server)
            if time.monotonic() > end and goes_on:
                break
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
    log_bytes = int(LOG_MB[arguments.evaluator] * 2**20)
    faults = Faults(server, arguments.evaluator, arguments.seed, log_bytes, crowd.compilers_idle, crowd.compile_soon)
    result["began"] = time.time()
    print(f"warm after {len(crowd.entries)} steps; {arguments.sessions} sessions, faults: {faults.kinds}", flush=True)
    tasks = [asyncio.create_task(crowd.session()) for _ in range(arguments.sessions)]
    enough = asyncio.Event()
    injecting = asyncio.create_task(inject(faults, arguments.every, enough, crowd, server))
    end = time.monotonic() + arguments.seconds
    while not injecting.done():
        left_s = end - time.monotonic()
        if left_s < 0 and (left_s < -COVER_S or (crowd.covered() and faults.covered())):
            break
        await asyncio.sleep(min(10.0, max(1.0, left_s)))
        ready = await asyncio.to_thread(get, f"{server.url}/ready")
        reason = None if ready is None else ready["reason"]
        print(f"{len(crowd.entries)} steps, {len(faults.records)} faults, not ready: {reason}", flush=True)
    # What was injected is noticed by what is submitted.
    enough.set()
    await injecting
    crowd.over.set()
    result["ended"] = time.time()
    # Clients that are frozen have a call open on purpose.
    _, late = await asyncio.wait(tasks, timeout=DRAIN_S)
    result["sessions that did not end"] = len(late)
    await crowd.thaw()
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    result["after"] = await settle(server, result["before"])
    result["slots that cannot be had"] = await crowd.refused(slots_for(arguments.sessions))
    return crowd, faults


def slots_for(sessions: int) -> int:
    """Frozen clients, and those that the server has not missed yet, hold a slot too."""
    return 2 * sessions + MAX_FROZEN


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
    settings = {
        "KERNEL_ENV_EVALUATOR": arguments.evaluator,
        "KERNEL_ENV_MAX_SESSIONS": str(slots_for(arguments.sessions)),
        "KERNEL_ENV_EVAL_LOG_MAX_MB": str(LOG_MB[arguments.evaluator]),
        **SETTINGS[arguments.evaluator],
    }
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
    result["faults"] = faults.records
    result["summary"] = summarise(crowd, faults, where.lines(), result)
    result["checks"] = checks(result)
    (arguments.out / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return report(result)


if __name__ == "__main__":
    sys.exit(main())
