"""Two judges on one device: they share it, one times alone, and what goes wrong in one does not touch the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, connect_when_free, make_settings, serve

from kernel_env.client import KernelEnv
from kernel_env.models import InfraCode, KernelAction, Outcome
from server.evaluator import EvalResult
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, Pool, _stat, descendants, open_pool, request_for, until
from tests.cpu_submissions import GOOD, TASK, softmax

pytestmark = NEEDS_CPU_EVALUATOR

# Names of their own in the process table tell the submissions apart.
NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)"
ENDLESS = softmax(top=NAMED.format(name=b"endless"), forward="time.sleep(1000)")
SLOW = softmax(top=NAMED.format(name=b"slow"), forward="time.sleep(0.15)")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two judges, which have measured the baseline."""
    with open_pool(judges_per_gpu=2, queue_timeout_s=2 * WAIT_S) as opened:
        for _ in range(2):
            with scoring(opened, GOOD) as first, scoring(opened, GOOD) as second:
                assert [r.result(WAIT_S).verdict.outcome for r in (first, second)] == ["scored", "scored"]
        yield opened


@contextlib.contextmanager
def scoring(pool: Pool, code: str, deadline_s: float = 4 * WAIT_S, **values: Any) -> Iterator[Future[EvalResult]]:
    """An evaluation in the background."""
    result: Future[EvalResult] = Future()
    request = request_for(code, **values)

    def run() -> None:
        try:
            result.set_result(asyncio.run(pool.evaluator.evaluate(request, deadline_s)))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield result
    finally:
        thread.join(4 * WAIT_S)


def named(pool: Pool, name: str) -> int | None:
    """The process that has given itself this name."""
    for worker in pool.evaluator._workers:
        if worker._process is not None:
            for pid in descendants(worker._process.pid):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as handle:
                    if handle.read().strip() == name:
                        return pid
    return None


def stopped(pid: int) -> bool:
    return _stat(pid)[:1] == [b"T"]


def timing(pool: Pool) -> int | None:
    """The worker that has the device alone."""
    holders = pool.evaluator._workers[0]._lease.holders()
    return next((worker for worker, state in holders.items() if state == "alone"), None)


def test_one_is_stopped_while_the_other_times_and_goes_on_afterwards(pool: Pool) -> None:
    with scoring(pool, ENDLESS, run_timeout_s=2.0, compile_timeout_s=6.0) as endless:
        victim = until(lambda: named(pool, "endless"))
        with scoring(pool, SLOW) as slow:
            until(lambda: timing(pool) is not None and stopped(victim))
            found = slow.result(WAIT_S).verdict
        assert found.outcome == "scored", found
        until(lambda: not stopped(victim))
        verdict = endless.result(2 * WAIT_S).verdict
    assert (verdict.outcome, verdict.infra_code) == ("timeout", None)
    assert verdict.phase_seconds["paused"] > 0


def test_a_submission_that_dies_while_it_is_stopped_is_its_own_doing(pool: Pool) -> None:
    with scoring(pool, ENDLESS, run_timeout_s=60.0) as endless:
        victim = until(lambda: named(pool, "endless"))
        with scoring(pool, SLOW) as slow:
            until(lambda: stopped(victim))
            os.kill(victim, signal.SIGKILL)
            # Anybody could have sent that: it is run again, and counts when it comes again.
            again = until(lambda: (pid := named(pool, "endless")) != victim and pid)
            os.kill(again, signal.SIGKILL)
            verdict = endless.result(WAIT_S).verdict
            assert (verdict.outcome, verdict.infra_code) == ("crashed", None), verdict
            assert slow.result(WAIT_S).verdict.outcome == "scored"


@pytest.mark.parametrize("who", ["the one that times", "the one that is stopped"])
def test_a_lost_judge_does_not_hold_up_the_other(pool: Pool, who: str) -> None:
    with scoring(pool, ENDLESS, run_timeout_s=2.0, compile_timeout_s=6.0) as endless:
        until(lambda: named(pool, "endless"))
        with scoring(pool, SLOW) as slow:
            until(lambda: timing(pool) is not None)
            timer = 0 if timing(pool) == 0 else 1
            lost = timer if who == "the one that times" else 1 - timer
            process = pool.evaluator._workers[lost]._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            assert slow.result(2 * WAIT_S).verdict.outcome == "scored"
        assert endless.result(2 * WAIT_S).verdict.outcome == "timeout"
    until(lambda: [w["state"] for w in pool.evaluator.status()["workers"]] == ["idle", "idle"])


@pytest.mark.parametrize("who", ["the one that times", "the one that is stopped"])
def test_a_cancelled_step_gives_the_device_back(pool: Pool, who: str) -> None:
    async def scenario() -> EvalResult:
        endless = asyncio.ensure_future(pool.evaluator.evaluate(request_for(ENDLESS, run_timeout_s=60.0), 2 * WAIT_S))
        victim = await asyncio.to_thread(until, lambda: named(pool, "endless"))
        slow = asyncio.ensure_future(pool.evaluator.evaluate(request_for(SLOW), 2 * WAIT_S))
        await asyncio.to_thread(until, lambda: stopped(victim))
        dropped, other = (slow, endless) if who == "the one that times" else (endless, slow)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        if other is endless:
            await asyncio.to_thread(until, lambda: not stopped(victim))
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            return await pool.evaluator.evaluate(request_for(GOOD), 2 * WAIT_S)
        return await other

    assert asyncio.run(scenario()).verdict.outcome == "scored"
    until(lambda: set(pool.evaluator._workers[0]._lease.holders().values()) == {"out"})


class Shared:
    """The pool's evaluator for a server that neither starts nor ends it."""

    name = "cpu"

    def __init__(self, pool: Pool) -> None:
        self.device, self.evaluate, self.status = pool.evaluator.device, pool.evaluator.evaluate, pool.evaluator.status

    def start(self) -> None:
        """It runs."""

    def close(self) -> None:
        """It goes on."""


def test_a_client_that_vanishes_while_its_submission_is_timed_gives_back_its_slot_and_the_device(
    pool: Pool, tmp_path: Path
) -> None:
    """Long before any limit that would end it: what it waits for is that somebody misses its client."""
    forever = softmax(top="CALLS = []", forward=f"CALLS.append(0)\nif len(CALLS) == 5:\n    time.sleep({20 * WAIT_S})")

    async def scenario(url: str) -> None:
        client = KernelEnv(url)
        await client.reset(task_id=TASK, step_deadline_s=10 * WAIT_S)
        step = asyncio.ensure_future(client.step(KernelAction(code=forever)))
        await asyncio.to_thread(until, lambda: timing(pool) is not None)
        assert client._ws is not None
        client._ws.transport.abort()
        await asyncio.wait({step})
        await asyncio.to_thread(until, lambda: set(pool.evaluator._workers[0]._lease.holders().values()) == {"out"})
        await client.close()
        client = await connect_when_free(url)
        await client.reset(task_id=TASK)
        assert (await client.step(KernelAction(code=GOOD))).observation.outcome is Outcome.SCORED
        await client.close()

    log = tmp_path / "log.jsonl"
    settings = make_settings(
        evaluator="cpu", trials=2, timed_runs=3, run_timeout_s=10 * WAIT_S, max_sessions=1, eval_log=log
    )
    with serve(settings, Shared(pool)) as url:
        asyncio.run(scenario(url))
    steps = [event for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "step"]
    assert [(event["outcome"], event["infra_code"]) for event in steps] == [
        ("infrastructure", "cancelled"),
        ("scored", None),
    ]


def test_a_deadline_that_ends_in_a_pause_is_ours(pool: Pool) -> None:
    """It was not waited for as long as a submission may take: the device was somebody else's."""
    slow = softmax(top=NAMED.format(name=b"slow"), forward="time.sleep(2.0)")
    with scoring(pool, slow) as other:
        until(lambda: timing(pool) is not None)
        with scoring(pool, GOOD, deadline_s=2.0) as short:
            verdict = short.result(WAIT_S).verdict
        assert (verdict.outcome, verdict.infra_code) == ("infrastructure", InfraCode.STEP_DEADLINE)
        assert other.result(WAIT_S).verdict.outcome == "scored"


def test_out_of_memory_counts_only_where_it_happens_alone(pool: Pool) -> None:
    verdict = pool.score(softmax(forward="torch.empty(1 << 36)")).verdict
    assert (verdict.outcome, verdict.infra_code) == ("out_of_memory", None)
    assert verdict.phase_seconds["lease_wait"] >= 0
    assert pool.score(GOOD).verdict.outcome == "scored"


def test_a_reference_that_is_short_of_memory_is_timed_again_alone(pool: Pool) -> None:
    """Beside others it says nothing about the task: only the second try, which has all of the memory, is believed."""
    short = """
import __main__
if "zygote" in str(__main__.__spec__):
    def forward(self, x):
        raise torch.OutOfMemoryError("for the test")
    Model.forward = forward
"""
    request = request_for(GOOD)
    request.task_source += short
    verdict = asyncio.run(pool.evaluator.evaluate(request, 4 * WAIT_S)).verdict
    assert (verdict.outcome, verdict.infra_code) == ("unscorable_task", None)
    assert "does not fit into this device's memory" in verdict.feedback
