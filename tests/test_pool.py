"""Faults of ours: lost judges and zygotes, deadlines, cancellation, and what a pool leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from conftest import WAIT_S, make_settings

from kernel_env.models import InfraCode
from server.evaluator import EvalResult, EvaluatorUnavailable, create_evaluator
from server.jobs import Job, Queue
from server.pool import PoolEvaluator
from server.worker.protocol import Cancel
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, Pool, alive, open_pool, request_for, until
from tests.cpu_submissions import GOOD, softmax

# Long enough to be caught in the middle, again and again.
SLOW = softmax(forward="time.sleep(0.3)")
ENDLESS = softmax(forward="time.sleep(1000)")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One evaluator for the module."""
    with open_pool(queue_timeout_s=2 * WAIT_S) as opened:
        yield opened


@contextlib.contextmanager
def in_background(pool: Pool, code: str, deadline_s: float = 4 * WAIT_S, **values: Any) -> Iterator[Future[EvalResult]]:
    """An evaluation on a thread of its own, with an event loop of its own."""
    result: Future[EvalResult] = Future()

    def run() -> None:
        try:
            result.set_result(pool.score(code, deadline_s=deadline_s, **values))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield result
    finally:
        thread.join(4 * WAIT_S)


def running(pool: Pool) -> int:
    """The process of the submission that is being evaluated, once it is there."""
    # The baseline is cached by then, so that the candidate is the submission's.
    return until(pool.candidate_pid)


@pytest.fixture(autouse=True)
def _baseline_is_measured(request: pytest.FixtureRequest) -> None:
    if "pool" in request.fixturenames:
        assert request.getfixturevalue("pool").score(GOOD).verdict.outcome == "scored"


pool_test = NEEDS_CPU_EVALUATOR


# ---------------------------------------------------------------- lost processes


@pool_test
@pytest.mark.parametrize("part", ["judge", "zygote"])
def test_a_lost_process_of_ours_is_replaced_and_the_submission_scored(pool: Pool, part: str) -> None:
    with in_background(pool, SLOW) as result:
        running(pool)
        before = pool.processes()
        directory = pool.evaluator._workers[0]._base
        assert directory is not None and os.path.isdir(directory)
        victim = pool.judge_pid() if part == "judge" else pool.zygote_pid()
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        evaluated = result.result(4 * WAIT_S)
    assert (evaluated.verdict.outcome, evaluated.attempts) == ("scored", 2), evaluated.verdict
    assert evaluated.verdict.infra_code is None
    until(lambda: not any(alive(pid) for pid in before))
    assert not os.path.exists(directory)


@pool_test
def test_a_judge_that_dies_idle_is_replaced_before_it_is_needed(pool: Pool) -> None:
    until(lambda: pool.evaluator.status()["workers"][0]["state"] == "idle")
    judge = pool.judge_pid()
    assert judge is not None
    os.kill(judge, signal.SIGKILL)
    until(lambda: pool.judge_pid() not in (judge, None) and pool.evaluator.status()["workers"][0]["state"] == "idle")
    evaluated = pool.score(GOOD)
    assert (evaluated.verdict.outcome, evaluated.attempts) == ("scored", 1)


@pool_test
def test_a_submission_that_is_lost_twice_is_a_fault_of_ours(pool: Pool) -> None:
    with in_background(pool, ENDLESS) as result:
        for _ in range(2):
            running(pool)
            judge = pool.judge_pid()
            assert judge is not None
            os.kill(judge, signal.SIGKILL)
            until(lambda judge=judge: pool.judge_pid() != judge)
        evaluated = result.result(4 * WAIT_S)
    assert (evaluated.verdict.outcome, evaluated.verdict.infra_code) == ("infrastructure", InfraCode.WORKER_LOST)
    assert evaluated.attempts == 2
    assert pool.score(GOOD).verdict.outcome == "scored"


@pool_test
def test_a_verdict_stands_when_its_judge_must_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoolEvaluator, "judge_module", "tests.unfit_judge")
    with open_pool() as pool:
        judge = pool.judge_pid()
        pool.evaluator._workers[0]._module = "server.worker.judge"  # the next one
        bad = pool.score(softmax(value="y"))
        assert (bad.verdict.outcome, bad.verdict.infra_code, bad.attempts) == ("wrong_values", None, 1)
        assert bad.verdict.judge_unfit
        assert pool.score(GOOD).verdict.outcome == "scored"
        assert pool.judge_pid() != judge
        assert pool.evaluator.status()["workers"][0]["faults"] >= 1


# ---------------------------------------------------------------- deadlines and cancellation


@pool_test
def test_the_steps_deadline_frees_the_worker(pool: Pool) -> None:
    judge = pool.judge_pid()
    with in_background(pool, ENDLESS, deadline_s=1.0) as result:
        candidate = running(pool)
        evaluated = result.result(WAIT_S)
    assert (evaluated.verdict.outcome, evaluated.verdict.infra_code) == ("timeout", None), "it had the time to itself"
    after = pool.score(GOOD)
    assert (after.verdict.outcome, after.attempts) == ("scored", 1)
    assert pool.judge_pid() == judge, "the judge is as good as before"
    assert not alive(candidate)


@pool_test
def test_the_wait_for_a_worker_has_a_limit(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_background(pool, ENDLESS, deadline_s=3.0) as first:
        running(pool)
        monkeypatch.setattr(pool.settings, "queue_timeout_s", 0.2)
        evaluated = pool.score(GOOD)
        assert evaluated.verdict.infra_code == InfraCode.QUEUE_TIMEOUT
        assert evaluated.queue_s >= 0.2
        assert pool.evaluator.status()["queue_depth"] == 0, "it does not wait any more"
        assert first.result(WAIT_S).verdict.outcome == "timeout"


@pool_test
def test_jobs_wait_for_the_worker_in_order(pool: Pool) -> None:
    async def both() -> list[EvalResult]:
        requests = [request_for(SLOW, timed_runs=3), request_for(GOOD)]
        return await asyncio.gather(*(pool.evaluator.evaluate(request, 2 * WAIT_S) for request in requests))

    first, second = asyncio.run(both())
    assert (first.verdict.outcome, second.verdict.outcome) == ("scored", "scored")
    assert second.queue_s > first.queue_s


@pool_test
def test_cancelling_the_caller_frees_the_worker(pool: Pool) -> None:
    judge = pool.judge_pid()

    async def cancelled() -> int:
        evaluation = asyncio.ensure_future(pool.evaluator.evaluate(request_for(ENDLESS), 2 * WAIT_S))
        candidate = await asyncio.to_thread(running, pool)
        evaluation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await evaluation
        return candidate

    candidate = asyncio.run(cancelled())
    assert pool.score(GOOD).verdict.outcome == "scored"
    assert pool.judge_pid() == judge
    assert not alive(candidate)


@pool_test
def test_cancelling_a_caller_that_waits_leaves_the_running_job_alone(pool: Pool) -> None:
    async def scenario() -> EvalResult:
        first = asyncio.ensure_future(pool.evaluator.evaluate(request_for(SLOW), 2 * WAIT_S))
        await asyncio.to_thread(running, pool)
        second = asyncio.ensure_future(pool.evaluator.evaluate(request_for(GOOD), 2 * WAIT_S))
        await asyncio.to_thread(until, lambda: pool.evaluator.status()["queue_depth"])
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert pool.evaluator.status()["queue_depth"] == 0
        return await first

    assert asyncio.run(scenario()).verdict.outcome == "scored"


# ---------------------------------------------------------------- start and stop


@pool_test
def test_closing_ends_everything_and_answers_everybody() -> None:
    with open_pool() as pool:
        with in_background(pool, ENDLESS) as running_job, in_background(pool, GOOD) as waiting_job:
            until(lambda: pool.candidate_pid() and pool.evaluator.status()["queue_depth"])
            before = pool.processes()
            assert len(before) >= 3
            pool.evaluator.close()
            assert not any(alive(pid) for pid in before)
            for job in (running_job, waiting_job):
                assert job.result(WAIT_S).verdict.outcome == "infrastructure"
        pool.evaluator.close()
        late = pool.score(GOOD)
        assert (late.verdict.outcome, late.verdict.infra_code) == ("infrastructure", InfraCode.WORKER_LOST)


@pool_test
def test_status_tells_what_a_worker_is_and_does(pool: Pool) -> None:
    device = pool.evaluator.device
    assert device is not None and (device.kind, device.driver) == ("cpu", None)
    assert device.name and device.torch and device.sandbox
    (before,) = pool.evaluator.status()["workers"]
    pool.score(GOOD)
    (after,) = pool.evaluator.status()["workers"]
    assert (after["device"], after["sandbox"]) == (device.name, device.sandbox)
    assert (after["evaluations"], after["faults"]) == (before["evaluations"] + 1, before["faults"])
    until(lambda: pool.evaluator.status()["workers"][0]["state"] == "idle")


@pool_test
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")
def test_gpu_without_a_gpu_names_the_other_evaluators() -> None:
    evaluator = create_evaluator(make_settings(evaluator="gpu"))
    try:
        with pytest.raises(EvaluatorUnavailable, match=r"GPU 0 .*KERNEL_ENV_EVALUATOR=cpu.*mock"):
            evaluator.start()
    finally:
        evaluator.close()


@pool_test
@pytest.mark.parametrize(
    ("python", "reason"), [("/bin/false", "did not start"), ("/no/such/python", "could not be started")]
)
def test_a_judge_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch, python: str, reason: str) -> None:
    monkeypatch.setattr("sys.executable", python)
    evaluator = PoolEvaluator(make_settings(evaluator="cpu"))
    with pytest.raises(EvaluatorUnavailable, match=f"{reason}.*mock"):
        evaluator.start()
    evaluator.close()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EvaluatorUnavailable, match=r"needs torch: install the extra 'cpu'.*mock"):
        PoolEvaluator(make_settings(evaluator="cpu")).start()


def test_elsewhere_than_on_linux_mock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(EvaluatorUnavailable, match=r"needs Linux.*mock"):
        PoolEvaluator(make_settings(evaluator="cpu")).start()


# ---------------------------------------------------------------- the queue


def job() -> Job:
    """A job that nobody waits for."""
    return Job(request_for(GOOD, source="reference"), deadline=0.0)


def test_the_queue_is_first_come_first_served_except_for_a_retry() -> None:
    queue = Queue()
    queue.join(0)
    first, second, again = job(), job(), job()
    queue.put(first)
    queue.put(second)
    queue.put(again, front=True)
    assert [queue.take(0) for _ in range(3)] == [again, first, second]


def test_a_retry_goes_to_another_worker_while_there_is_one() -> None:
    queue = Queue()
    queue.join(0)
    queue.join(1)
    retried, other = job(), job()
    retried.avoid.add(0)
    queue.put(retried)
    queue.put(other)
    assert queue.take(0) is other
    assert queue.take(1) is retried
    queue.put(retried)
    queue.leave(1)
    assert queue.take(0) is retried


def test_a_closed_queue_gives_out_nothing_and_answers_what_waited() -> None:
    queue = Queue()
    queue.join(0)
    waiting, late = job(), job()
    queue.put(waiting)
    queue.close()
    queue.put(late)
    assert queue.take(0) is None
    for left in (waiting, late):
        assert left.started.done()
        assert left.result.result(0).verdict.infra_code == InfraCode.WORKER_LOST


@NEEDS_CPU_EVALUATOR
def test_a_late_cancellation_of_an_earlier_evaluation_cancels_nothing(pool: Pool) -> None:
    pool.score(GOOD)
    with in_background(pool, SLOW) as result:
        running(pool)
        connection = pool.evaluator._workers[0]._connection
        assert connection is not None
        connection.send(Cancel("an earlier one"))
        assert result.result(8 * WAIT_S).verdict.outcome == "scored"


@NEEDS_CPU_EVALUATOR
def test_a_submission_that_is_slow_in_every_call_is_the_models(pool: Pool) -> None:
    """Each call is within its limit, and all together do not fit into the step: a fault of ours would be free."""
    pool.score(GOOD)
    slow = softmax(forward="time.sleep(1.0)")
    verdict = pool.score(slow, deadline_s=10.0, run_timeout_s=3.0, trials=50).verdict
    assert (verdict.outcome, verdict.infra_code) == ("timeout", None)
    assert "too slow" in verdict.feedback
    assert pool.score(GOOD).verdict.outcome == "scored"


@NEEDS_CPU_EVALUATOR
@pytest.mark.parametrize("where", ["top", "forward"])
def test_a_submission_that_hangs_is_the_models_whatever_the_deadline(pool: Pool, where: str) -> None:
    """A fault of ours would cost it nothing, and it could be sent again for ever."""
    pool.score(GOOD)
    verdict = pool.score(softmax(**{where: "time.sleep(1000)"}), deadline_s=5.0).verdict
    assert (verdict.outcome, verdict.infra_code) == ("timeout", None)


# Deeper than Python recurses and than a path can be long. The time grows with the square of it.
DEEP_TREE = """
import os
here = os.open(".", os.O_RDONLY)
for _ in range(5000):
    os.mkdir("d")
    os.chdir("d")
os.fchdir(here)
"""
WIDE_STRIDE = """
from server.worker import candidate
run = candidate.Candidate._run
def lie(self, request):
    reply = run(self, request)
    reply.outputs[0].strides = [2**64 - 1] * len(reply.outputs[0].strides)
    return reply
candidate.Candidate._run = lie
"""


@NEEDS_CPU_EVALUATOR
@pytest.mark.parametrize("top", [DEEP_TREE, WIDE_STRIDE], ids=["a deep tree", "a wide stride"])
def test_what_once_ended_a_worker_is_only_a_submission(pool: Pool, top: str) -> None:
    faults = pool.evaluator.status()["workers"][0]["faults"]
    verdict = pool.score(softmax(top=top)).verdict
    assert verdict.infra_code is None
    assert pool.score(GOOD).verdict.outcome == "scored"
    assert pool.evaluator.status()["workers"][0]["faults"] == faults
