"""One submission's way through static checks, the evaluator and scoring. Touches the evaluator only.

Runs no submitted code. Every way this can fail on our side becomes an infrastructure score.
"""

from __future__ import annotations

import asyncio
import time
import traceback
import uuid
from dataclasses import dataclass, field
from typing import Any

from kernel_env.models import InfraCode, Outcome, Stage
from server import static_checks
from server.disconnect import client_gone
from server.eval_log import EvalLog
from server.evaluator import EvalResult, Evaluator
from server.metrics import Metrics
from server.prompts import Language
from server.scoring import MAX_FEEDBACK_CHARS, Score, infrastructure, score
from server.settings import Settings
from server.static_rules import Violation
from server.static_work import Work
from server.tasks import Task, TaskSource
from server.text import bound
from server.worker.protocol import DeviceInfo, Evaluate, Verdict

# The evaluator keeps the deadline itself; past this margin it is presumed stuck.
DEADLINE_MARGIN_S = 10.0
# An example takes milliseconds, and the checks count their own work; this is for what they cannot count, the parser.
STATIC_TIMEOUT_S = 20.0
# How long a cancelled evaluation may take to let go of its worker before the session goes on without it.
CANCEL_GRACE_S = 5.0


@dataclass(frozen=True)
class Services:
    """What all sessions of a server share."""

    settings: Settings
    evaluator: Evaluator
    tasks: TaskSource
    log: EvalLog
    metrics: Metrics = field(default_factory=Metrics)


@dataclass
class Judged:
    """One submission's way through the stages, for the observation and the log."""

    eval_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    score: Score = field(default_factory=lambda: infrastructure(InfraCode.JUDGE_ERROR))
    phase_seconds: dict[str, float] = field(default_factory=dict)
    gpu: str | None = None
    device: DeviceInfo | None = None
    verdict: Verdict | None = None
    """What the evaluator said; None where it was not asked or did not answer."""
    attempts: int = 0
    infra_detail: str = ""
    retried: list[dict[str, str]] = field(default_factory=list)
    """Why it was tried again, each time: the InfraCode or "signal", and for the log what was known of it."""
    clocks_ms: dict[str, float | None] = field(default_factory=dict)
    """The medians the timing was decided on: the candidate's events, the judge's clock, and how far they may differ."""


async def judge(
    services: Services, task: Task, language: Language, code: str, deadline_s: float, eval_id: str | None = None
) -> Judged:
    """Judge one submission within `deadline_s` seconds. Never raises, except when its own task is cancelled."""
    judged = Judged(eval_id) if eval_id is not None else Judged()
    began = time.monotonic()
    work = Work()
    try:
        try:
            violated = await _static_score(code, language, services.evaluator.name == "cpu", work, deadline_s)
        finally:
            work.stop()  # a thread that nobody waits for any more ends
        judged.phase_seconds["static"] = time.monotonic() - began
        if violated is not None:
            judged.score = violated
        else:
            request = evaluation_request(services.settings, judged.eval_id, task, language, code)
            result = await _evaluate(services.evaluator, request, deadline_s - judged.phase_seconds["static"])
            device = judged.device = result.device or services.evaluator.device
            judged.verdict = result.verdict
            judged.gpu = device.name if device is not None and device.kind != "mock" else None
            judged.attempts = result.attempts
            judged.phase_seconds |= {**result.verdict.phase_seconds, "queue": result.queue_s}
            judged.infra_detail = result.verdict.infra_detail
            judged.retried = [
                {
                    "after": earlier.infra_code or "signal",
                    "detail": bound(earlier.infra_detail or earlier.feedback, 1000),
                }
                for earlier in result.retried
            ]
            judged.clocks_ms = {
                "event": result.verdict.t_event_ms,
                "wall": result.verdict.t_wall_ms,
                "tolerance": result.verdict.t_tolerance_ms,
            }
            judged.score = score(result.verdict, services.settings, device, task.task_id)
    except _NoThread as exc:
        judged.score, judged.infra_detail = infrastructure(InfraCode.STEP_DEADLINE), str(exc)
    except Exception as exc:
        judged.score = infrastructure(InfraCode.JUDGE_ERROR)
        judged.infra_detail = describe(exc)
    judged.phase_seconds["total"] = time.monotonic() - began
    return judged


def describe(exc: Exception) -> str:
    """The traceback, for the log only: it holds paths."""
    return bound("".join(traceback.format_exception(exc)), MAX_FEEDBACK_CHARS)


class _NoThread(Exception):
    """The server was too busy to look at a submission at all."""


async def _static_score(code: str, language: Language, cpu: bool, work: Work, deadline_s: float) -> Score | None:
    """The score of a submission that a parser rejects, None for any other.

    Raises:
        _NoThread: no thread became free within `deadline_s` seconds.
    """
    loop, began = asyncio.get_running_loop(), asyncio.Event()

    def check() -> list[Violation]:
        loop.call_soon_threadsafe(began.set)
        return static_checks.check(code, language, cpu=cpu, work=work)

    checking = asyncio.ensure_future(asyncio.to_thread(check))
    try:
        # The wait for a thread is not the submission's doing.
        await asyncio.wait_for(began.wait(), deadline_s)
    except TimeoutError as error:
        checking.cancel()
        raise _NoThread("no thread became free for the static checks within the step's deadline") from error
    try:
        violations = await asyncio.wait_for(checking, STATIC_TIMEOUT_S)
    except TimeoutError:
        return _rejected("static_violation", "The source takes too long to parse. Make it shorter and simpler.")
    if not violations:
        return None
    return _rejected(static_checks.outcome(violations), static_checks.feedback(violations))


def _rejected(outcome: str, feedback: str) -> Score:
    fields = {
        "stage": Stage.STATIC,
        "outcome": Outcome(outcome),
        "feedback": bound(feedback, MAX_FEEDBACK_CHARS),
        "correct": False,
    }
    return Score(fields, reward=0.0, uses_turn=True)


def evaluation_request(settings: Settings, eval_id: str, task: Task, language: Language, code: str) -> Evaluate:
    """What the evaluator is asked to score a submission."""
    return Evaluate(
        eval_id=eval_id,
        task_id=task.task_id,
        task_source=task.source,
        code=code,
        language=language,
        plans=task.admission.plans if task.admission is not None else [],
        trials=settings.trials,
        atol=settings.atol,
        rtol=settings.rtol,
        timed_runs=settings.timed_runs,
        compile_timeout_s=settings.compile_timeout_s,
        run_timeout_s=settings.run_timeout_s,
    )


async def _evaluate(evaluator: Evaluator, request: Evaluate, deadline_s: float) -> EvalResult:
    """One evaluation, given up at the deadline or when the client is gone, and cancelled then."""
    gone = client_gone()
    if gone is not None and gone.is_set():
        return _given_up(request, InfraCode.CANCELLED, "the client had disconnected")
    limit_s = max(deadline_s, 0.0) + DEADLINE_MARGIN_S
    evaluation = asyncio.ensure_future(evaluator.evaluate(request, deadline_s))
    waits: set[asyncio.Future[Any]] = {evaluation}
    if gone is not None:
        waits.add(asyncio.ensure_future(gone.wait()))
    try:
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if evaluation.done():
            return evaluation.result()
        disconnected = gone is not None and gone.is_set()
    finally:
        for future in waits:
            future.cancel()
    await asyncio.wait({evaluation}, timeout=CANCEL_GRACE_S)
    if disconnected:
        return _given_up(request, InfraCode.CANCELLED, "the client disconnected")
    return _given_up(request, InfraCode.STEP_DEADLINE, f"no verdict within {limit_s:.0f} s")


def _given_up(request: Evaluate, code: InfraCode, detail: str) -> EvalResult:
    verdict = Verdict(
        request.eval_id, Stage.READY.value, Outcome.INFRASTRUCTURE.value, infra_code=code.value, infra_detail=detail
    )
    return EvalResult(verdict)
