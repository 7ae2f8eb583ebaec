"""Every process killed in every phase, and what else can fail on our side: tried again once, then not scored.

What test_pool.py and test_pool_sharing.py have is not repeated. The evaluator here runs on the CPU.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S

from kernel_env.models import InfraCode
from server import pool_worker
from server.evaluator import EvalResult
from server.jobs import Job
from server.operations import out, unready
from server.pool import PoolEvaluator
from server.pool_worker import RETIRE_AFTER
from server.worker.protocol import Verdict
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, TASKS, Pool, alive, open_pool, request_for, until
from tests.cpu_submissions import BROKEN_CPP, GOOD, TASK, softmax

pytestmark = NEEDS_CPU_EVALUATOR

# A process says by its file mode mask, which anybody may read, where it is, and stays there until it may go on.
MARK = 0o712
GO_ON = signal.SIGUSR1
HERE = f"""signal.pthread_sigmask(signal.SIG_BLOCK, [{GO_ON:d}])
os.umask({MARK})
signal.sigtimedwait([{GO_ON:d}], {WAIT_S})
os.umask(0o022)"""


def in_call(number: int) -> str:
    """A submission that is to be found in one of its calls."""
    lines = ["globals()['calls'] = globals().get('calls', 0) + 1", f"if calls == {number}:"]
    return softmax(forward="\n".join([*lines, *(f"    {line}" for line in HERE.splitlines())]))


IN_LOAD = softmax(top=HERE)
IN_TRIALS = in_call(1)
IN_TIMING = in_call(4)  # after two trials and a call to tune


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool(queue_timeout_s=2 * WAIT_S) as opened:
        yield opened


@contextlib.contextmanager
def scoring(pool: Pool, code: str, **values: Any) -> Iterator[Future[EvalResult]]:
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(pool.score, code, **values)


def marked(pool: Pool) -> int | None:
    """The candidate that says that it is where it is wanted."""
    for pid in pool.processes():
        with contextlib.suppress(OSError):
            if f"\nUmask:\t{MARK:04o}\n" in Path(f"/proc/{pid}/status").read_text():
                return pid
    return None


def go_on(pool: Pool, but: int | None = None) -> None:
    """Let the candidate that waits to be found go on, once it is another than `but`."""
    os.kill(until(lambda: (pid := marked(pool)) != but and pid), GO_ON)


def is_busy(pool: Pool) -> bool:
    return pool.evaluator.status()["workers"][0]["state"] == "busy"


PHASES = {
    "prepare": ("judge", "zygote"),
    "baseline": ("judge", "candidate", "zygote"),
    "load": ("judge", "candidate", "zygote"),
    "trials": ("candidate",),
    "timing": ("judge", "candidate", "zygote"),
}


@pytest.mark.parametrize(
    ("phase", "part"), [(phase, part) for phase, parts in PHASES.items() for part in parts], ids=lambda value: value
)
def test_what_is_killed_from_outside_in_any_phase_is_tried_again(pool: Pool, phase: str, part: str) -> None:
    unknown = phase in ("prepare", "baseline")  # a task that the judge does not know yet
    assert unknown or pool.score(GOOD).verdict.outcome == "scored"
    code = {"load": IN_LOAD, "trials": IN_TRIALS, "timing": IN_TIMING}.get(phase, GOOD)
    source = TASKS.get(TASK).source + (f"\n# {uuid.uuid4().hex}\n" if unknown else "")
    until(lambda: not is_busy(pool) and pool.zygote_pid())
    with scoring(pool, code, source=source) as result:
        if phase == "prepare":
            until(lambda: is_busy(pool))
            assert pool.candidate_pid() is None
        candidate = until({"prepare": lambda: True, "baseline": pool.candidate_pid}.get(phase, lambda: marked(pool)))
        victim = {"judge": pool.judge_pid, "zygote": pool.zygote_pid, "candidate": lambda: candidate}[part]()
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        if not unknown:
            go_on(pool, but=candidate)
        found = result.result(4 * WAIT_S)
    assert (found.verdict.outcome, found.verdict.infra_code, found.attempts) == ("scored", None, 2), found.verdict


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_that_comes_again_is_the_submissions_own(pool: Pool, number: int) -> None:
    faults = pool.evaluator.status()["workers"][0]["faults"]
    found = pool.score(softmax(forward=f"os.kill(os.getpid(), {int(number)})"))
    assert (found.verdict.outcome, found.verdict.infra_code, found.attempts) == ("crashed", None, 2)
    assert pool.evaluator.status()["workers"][0]["faults"] == faults


def test_a_signal_that_is_a_crash_of_ones_own_is_believed_at_once(pool: Pool) -> None:
    found = pool.score(softmax(forward="os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (found.verdict.outcome, found.attempts) == ("crashed", 1)


def test_a_signal_shortly_before_the_deadline_is_not_tried_again(pool: Pool) -> None:
    """Else whoever waits that long before it kills itself would always meet the deadline, and never be scored."""
    assert pool.score(GOOD).verdict.outcome == "scored"
    late = softmax(forward="time.sleep(4)\nos.kill(os.getpid(), signal.SIGKILL)")
    found = pool.score(late, deadline_s=7.0)
    assert (found.verdict.outcome, found.verdict.infra_code, found.attempts) == ("crashed", None, 1)


LOST: dict[str, Any] = {"infra_code": "worker_lost"}
KILLED: dict[str, Any] = {"signal": int(signal.SIGKILL)}


@pytest.mark.parametrize(
    ("before", "last", "again"),
    [
        ([], LOST, True),
        ([], KILLED, True),
        ([LOST], LOST, False),
        ([KILLED], KILLED, False),
        ([LOST], KILLED, True),
        ([KILLED], LOST, True),
        ([LOST, KILLED], LOST, False),
        ([LOST, KILLED], KILLED, False),
    ],
)
def test_a_fault_of_ours_does_not_make_a_signal_one_that_came_again(
    before: list[dict[str, Any]], last: dict[str, Any], again: bool
) -> None:
    worker = object.__new__(pool_worker.Worker)
    worker._closing = threading.Event()
    job = Job(request_for(GOOD), deadline=time.monotonic() + WAIT_S)
    answers = []
    for what in (*before, last):
        job.attempts += 1
        answers.append(worker._again(job, Verdict("id", "correctness", "crashed", **what)))
    assert answers[-1] is again


# ---------------------------------------------------------------- a judge that stops answering


@pytest.mark.parametrize("when", ["busy", "idle", "starting"])
def test_a_judge_that_is_stopped_is_replaced(pool: Pool, when: str) -> None:
    assert pool.score(GOOD).verdict.outcome == "scored"
    judge = pool.judge_pid()
    assert judge is not None
    if when == "idle":
        os.kill(judge, signal.SIGSTOP)
        until(lambda: pool.judge_pid() not in (judge, None))
        assert (pool.score(GOOD).verdict.outcome, alive(judge)) == ("scored", False)
        return
    if when == "starting":
        os.kill(judge, signal.SIGKILL)
        judge = until(lambda: (pid := pool.judge_pid()) != judge and pid)
        os.kill(judge, signal.SIGSTOP)
        assert (pool.score(GOOD).verdict.outcome, alive(judge)) == ("scored", False)
        return
    with scoring(pool, IN_TRIALS) as result:
        candidate = until(lambda: marked(pool))
        os.kill(judge, signal.SIGSTOP)
        go_on(pool, but=candidate)
        found = result.result(4 * WAIT_S)
    assert (found.verdict.outcome, found.verdict.infra_code, found.attempts) == ("scored", None, 2), found.verdict
    assert not alive(judge)


# ---------------------------------------------------------------- the host


def test_a_directory_that_cannot_be_written_is_tried_again_in_another(pool: Pool) -> None:
    assert pool.score(GOOD).verdict.outcome == "scored"
    directory = pool.evaluator._workers[0]._base
    assert directory is not None
    os.rename(directory, f"{directory}-aside")
    try:
        found = pool.score(GOOD)
    finally:
        os.rename(f"{directory}-aside", directory)
        pool_worker.remove_tree(directory)
    assert (found.verdict.outcome, found.attempts) == ("scored", 2)


def test_a_disk_that_stays_full_is_named_and_readiness_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pool() as pool:
        assert pool.score(GOOD).verdict.outcome == "scored"
        directory = pool.evaluator._workers[0]._base
        assert directory is not None

        def full(*_: Any, **__: Any) -> str:
            raise OSError(errno.ENOSPC, "for the test")

        with monkeypatch.context() as patch:
            patch.setattr(pool_worker.tempfile, "mkdtemp", full)
            pool_worker.remove_tree(directory)
            with scoring(pool, GOOD, deadline_s=10.0) as result:
                # One fault of the evaluation, and each start since.
                until(lambda: pool.evaluator.status()["workers"][0]["faults_in_a_row"] >= 3)
                status = until(
                    lambda: (now := pool.evaluator.status())["workers"][0]["state"] == "down" and now  # noqa: B023
                )
                reason = unready(status)
                assert reason is not None and "Worker 0 is down after" in reason and "the last start." in reason
                found = result.result(WAIT_S)
            assert (found.verdict.infra_code, found.attempts) == (InfraCode.DISK, 1)
        until(lambda: pool.evaluator.status()["workers"][0]["state"] == "idle")
        assert pool.score(GOOD).verdict.outcome == "scored"
        (worker,) = pool.evaluator.status()["workers"]
        assert (worker["faults_in_a_row"], out(pool.evaluator.status())) == (0, [])


def test_a_missing_compiler_is_looked_for_twice_and_keeps_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with open_pool() as lacking:
        judge = lacking.judge_pid()
        for _ in range(RETIRE_AFTER):
            found = lacking.score(BROKEN_CPP, "level1/19_ReLU", language="cuda")
            assert (found.verdict.infra_code, found.attempts) == (InfraCode.COMPILER_MISSING, 2)
            assert "c++" in found.verdict.infra_detail
        assert lacking.score(GOOD).verdict.outcome == "scored"
        assert lacking.judge_pid() == judge
        assert lacking.evaluator.status()["workers"][0]["faults"] == 0


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("oom", InfraCode.JUDGE_OUT_OF_MEMORY),
        ("crowded", InfraCode.JUDGE_OUT_OF_MEMORY),
        ("candidate: crowded", InfraCode.JUDGE_OUT_OF_MEMORY),
        ("reference: disk", InfraCode.DISK),
        ("silent", InfraCode.GPU_LOST),
        ("full", InfraCode.DISK),
        ("fills", InfraCode.DISK),
    ],
    ids=lambda value: value,
)
def test_a_host_that_fails_us_is_tried_twice(monkeypatch: pytest.MonkeyPatch, what: str, code: InfraCode) -> None:
    monkeypatch.setenv("TEST_FAULT", what)
    monkeypatch.setattr(PoolEvaluator, "judge_module", "tests.faulty_judge")
    with open_pool() as pool:
        found = pool.score(_SUBMITTED.get(what, GOOD))
        assert (found.verdict.infra_code, found.attempts) == (code, 2), found.verdict
        assert [earlier.infra_code for earlier in found.retried] == [code]


_SUBMITTED = {
    "fills": softmax(top="raise OSError(errno.ENOSPC, 'no space')"),
    "candidate: crowded": softmax(forward="torch.empty(1 << 40)"),
}


@pytest.mark.parametrize("what", ["does not fit", "reference: broken"])
def test_what_is_the_tasks_own_fault_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("TEST_FAULT", what)
    monkeypatch.setattr(PoolEvaluator, "judge_module", "tests.faulty_judge")
    with open_pool() as pool:
        found = pool.score(GOOD)
    assert (found.verdict.outcome, found.verdict.infra_code, found.attempts) == ("unscorable_task", None, 1)
    assert sys.prefix not in found.verdict.feedback and "cannot be scored here" in found.verdict.feedback


def test_a_candidate_that_is_killed_while_its_zygote_is_stopped_is_tried_again(pool: Pool) -> None:
    assert pool.score(GOOD).verdict.outcome == "scored"
    with scoring(pool, IN_TRIALS) as result:
        candidate = until(lambda: marked(pool))
        zygote = pool.zygote_pid()
        assert zygote is not None
        os.kill(zygote, signal.SIGSTOP)
        os.kill(candidate, signal.SIGKILL)
        go_on(pool, but=candidate)
        found = result.result(4 * WAIT_S)
    assert (found.verdict.outcome, found.attempts) == ("scored", 2), found.verdict
    assert [earlier.infra_code for earlier in found.retried] == [InfraCode.ZYGOTE_LOST]
    assert not alive(zygote)


def test_a_device_that_goes_on_failing_retires_the_worker_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_FAULT", "lost")
    monkeypatch.setattr(PoolEvaluator, "judge_module", "tests.faulty_judge")
    with open_pool() as pool:
        worker = pool.evaluator._workers[0]
        first = pool.score(GOOD)
        assert (first.verdict.infra_code, first.attempts) == (InfraCode.GPU_LOST, 2), first.verdict
        with scoring(pool, GOOD) as result:
            found = until(lambda: worker.state == "down" and pool.evaluator.status())
            assert out(found) == [f"Worker 0 is down after {RETIRE_AFTER} faults in a row, the last gpu_lost."]
            worker._module = "server.worker.judge"  # it works again
            assert result.result(4 * WAIT_S).verdict.outcome == "scored"
        assert worker.in_a_row == 0
