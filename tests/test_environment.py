"""KernelEnvironment and its scoring without a server: what OpenEnv's web interface and the command line use."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
from conftest import WAIT_S, ScriptedEvaluator, as_mock, make_settings, never

from kernel_env import demo_kernels
from kernel_env.models import InfraCode, KernelAction, Outcome, Stage
from server import disconnect
from server.environment import KernelEnvironment, Refused
from server.eval_log import EvalLog
from server.evaluator import EvalResult, Evaluator, create_evaluator
from server.mock_evaluator import MockEvaluator
from server.scoring import MAX_FEEDBACK_CHARS, score
from server.settings import Settings
from server.submission import Services
from server.tasks import TaskSource
from server.worker.protocol import DeviceInfo, Evaluate, TaskFacts, Verdict

TASK = "level1/23_Softmax"
TRIANGULAR = "level1/14_Matmul_for_upper_triangular_matrices"
GOOD = KernelAction(code=demo_kernels.GOOD)
H200 = DeviceInfo(kind="cuda", name="NVIDIA H200", memory_bytes=150_000_000_000)
# On an H200's 4.8 TB/s the bytes take 1 ms; the FLOPs at 494.7 TFLOP/s take 2 ms.
MEMORY_1_MS = TaskFacts(flops=0, input_bytes=4_800_000_000, parameter_bytes=0, output_bytes=0, dtype="float32")
COMPUTE_2_MS = TaskFacts(
    flops=989_400_000_000, input_bytes=4_800_000_000, parameter_bytes=0, output_bytes=0, dtype="float32"
)


def make_environment(
    evaluator: Evaluator | None = None, log: io.StringIO | None = None, **settings: Any
) -> KernelEnvironment:
    """An environment with the built-in tasks."""
    services = Services(
        make_settings(**settings),
        evaluator or MockEvaluator(),
        TaskSource.builtin(),
        EvalLog(None, log or io.StringIO()),
    )
    return KernelEnvironment(services)


def scored(t_ref_ms: float | None, t_new_ms: float | None, facts: TaskFacts | None = None) -> Verdict:
    """The verdict on a correct kernel."""
    return Verdict(
        "id",
        "scored",
        "scored",
        compiled=True,
        correct=True,
        trials_passed=5,
        trials_total=5,
        t_ref_ms=t_ref_ms,
        t_new_ms=t_new_ms,
        timing_method="event",
        facts=facts,
    )


# ---------------------------------------------------------------- the environment


def test_sync_step_works_with_and_without_a_running_loop() -> None:
    environment = make_environment()
    environment.reset(task_id=TASK)
    assert environment.step(GOOD).outcome is Outcome.SCORED

    async def inside_a_loop() -> Outcome:
        return environment.step(GOOD).outcome

    assert asyncio.run(inside_a_loop()) is Outcome.SCORED
    assert environment.state.step_count == 2


def test_the_constructor_does_no_work() -> None:
    untouchable: Any = object()
    KernelEnvironment(Services(untouchable, untouchable, untouchable, untouchable))


def test_close_is_idempotent_and_use_after_it_is_refused() -> None:
    environment = make_environment()
    environment.reset(task_id=TASK)
    environment.close()
    environment.close()
    for use in (lambda: environment.step(GOOD), environment.reset):
        with pytest.raises(Refused, match=r"^\[session_closed\]"):
            use()


def test_the_request_carries_the_settings_and_the_tighter_deadline() -> None:
    evaluator = ScriptedEvaluator(as_mock)
    environment = make_environment(evaluator, trials=3, atol=0.5, rtol=0.25, timed_runs=7, compile_timeout_s=11.0)
    environment.reset(task_id=TASK, language="triton", step_deadline_s=100)
    environment.step(GOOD, timeout_s=50)
    environment.step(GOOD, timeout_s=500)
    request = evaluator.requests[0]
    assert (request.trials, request.atol, request.rtol, request.timed_runs) == (3, 0.5, 0.25, 7)
    assert (request.task_id, request.compile_timeout_s, request.code) == (TASK, 11.0, GOOD.code)
    assert "class Model(" in request.task_source
    assert 40 < evaluator.deadlines_s[0] <= 50
    assert 90 < evaluator.deadlines_s[1] <= 100


def test_a_static_violation_never_reaches_the_evaluator() -> None:
    evaluator = ScriptedEvaluator(as_mock)
    environment = make_environment(evaluator)
    environment.reset(task_id=TASK)
    observation = environment.step(KernelAction(code="def broken("))
    assert (observation.stage, observation.outcome) == (Stage.STATIC, Outcome.SYNTAX_ERROR)
    assert observation.correct is False
    assert evaluator.requests == []


def test_a_client_that_is_gone_costs_no_evaluation() -> None:
    evaluator = ScriptedEvaluator(as_mock)
    environment = make_environment(evaluator)
    environment.reset(task_id=TASK)

    async def step_of_the_dead() -> InfraCode | None:
        gone = asyncio.Event()
        gone.set()
        disconnect._client_gone.set(gone)
        return (await environment.step_async(GOOD)).infra_code

    assert asyncio.run(step_of_the_dead()) is InfraCode.CANCELLED
    assert evaluator.requests == []


def test_cancelling_a_step_cancels_its_evaluation() -> None:
    evaluator = ScriptedEvaluator(never)
    environment = make_environment(evaluator)
    environment.reset(task_id=TASK)

    async def scenario() -> None:
        step = asyncio.ensure_future(environment.step_async(GOOD))
        assert await asyncio.to_thread(evaluator.entered.wait, WAIT_S)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    asyncio.run(scenario())
    assert evaluator.cancelled.is_set()
    assert environment.state.step_count == 0


def test_a_broken_task_file_is_an_internal_error_without_paths(tmp_path: Any) -> None:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_Broken.py").write_bytes(b"\xff\xfe")
    log = io.StringIO()
    services = Services(make_settings(), MockEvaluator(), TaskSource(tmp_path), EvalLog(None, log))
    with pytest.raises(Refused, match=r"^\[internal_error\]") as raised:
        KernelEnvironment(services).reset(task_id="level1/1_Broken")
    assert str(tmp_path) not in str(raised.value)
    assert "1_Broken" in json.loads(log.getvalue())["detail"]


@pytest.mark.parametrize("verdict", [scored(None, 1.0), scored(1.0, None), Verdict("id", "nowhere", "scored")])
def test_a_verdict_that_contradicts_itself_is_the_judges_fault(verdict: Verdict) -> None:
    async def script(request: Evaluate) -> EvalResult:
        return EvalResult(verdict, H200)

    environment = make_environment(ScriptedEvaluator(script))
    environment.reset(task_id=TASK)
    observation = environment.step(GOOD)
    assert (observation.reward, observation.infra_code) == (None, InfraCode.JUDGE_ERROR)
    assert observation.turn == 0


def test_mock_evaluator_is_a_function_of_the_source() -> None:
    def times(code: str) -> tuple[float | None, float | None]:
        request = Evaluate(eval_id="id", task_id=TASK, task_source="task", code=code)
        verdict = asyncio.run(MockEvaluator().evaluate(request, 1.0)).verdict
        return verdict.t_ref_ms, verdict.t_new_ms

    assert times("a") == times("a")
    assert times("a")[0] == times("b")[0]
    assert times("a")[1] != times("b")[1]
    assert create_evaluator(make_settings()).name == "mock"


# ---------------------------------------------------------------- scoring


def score_it(verdict: Verdict, task_id: str = TASK, device: DeviceInfo | None = H200, **settings: Any) -> Any:
    """`score` with the settings' defaults."""
    return score(verdict, Settings().model_copy(update=settings), device, task_id)


def test_a_correct_kernel_is_paid_and_told_where_it_stands() -> None:
    result = score_it(scored(8.0, 2.0, MEMORY_1_MS))
    assert result.reward == pytest.approx(0.3 + 2.0)
    assert result.fields["speedup"] == pytest.approx(4.0)
    assert result.fields["roofline_frac"] == pytest.approx(0.5)
    assert result.fields["ref_roofline_frac"] == pytest.approx(0.125)
    assert result.fields["bound"] == "memory"
    for part in ("4.00x", "50%", "memory bandwidth", "2 ms", "8 ms"):
        assert part in result.fields["feedback"]


def test_roofline_reward() -> None:
    result = score_it(scored(8.0, 2.0, MEMORY_1_MS), reward="roofline")
    assert result.reward == pytest.approx(0.3 + 2.7 * 0.5)


@pytest.mark.parametrize(("t_new_ms", "rejected"), [(1.59, True), (1.61, False)])
def test_a_time_below_the_floor_is_not_believed(t_new_ms: float, rejected: bool) -> None:
    result = score_it(scored(8.0, t_new_ms, COMPUTE_2_MS))
    assert (result.fields["outcome"] is Outcome.IMPOSSIBLE_TIME) is rejected
    assert (result.reward == 0.0) is rejected
    assert ("speedup" in result.fields) is not rejected
    if rejected:
        assert result.fields["stage"] is Stage.TIMING
        assert result.uses_turn
        assert "2 ms" in result.fields["feedback"]


def test_a_reference_that_does_more_than_it_must_is_rejected_by_bytes_alone() -> None:
    assert score_it(scored(8.0, 1.5, COMPUTE_2_MS), TRIANGULAR).fields["outcome"] is Outcome.SCORED
    assert score_it(scored(8.0, 0.7, COMPUTE_2_MS), TRIANGULAR).fields["outcome"] is Outcome.IMPOSSIBLE_TIME


def test_rejection_can_be_turned_off_and_needs_a_known_gpu() -> None:
    assert score_it(scored(8.0, 0.1, COMPUTE_2_MS), roofline_reject=0.0).reward > 0
    unknown = score_it(scored(8.0, 0.1, COMPUTE_2_MS), device=DeviceInfo(kind="cuda", name="NVIDIA Imaginary 9000"))
    assert unknown.reward > 0
    assert unknown.fields["t_min_ms"] is None


def test_a_failed_kernel_gets_zero_and_its_feedback_bounded() -> None:
    verdict = Verdict(
        "id",
        "correctness",
        "wrong_values",
        feedback="x" * 100_000 + "\ud800",
        trials_total=5,
        max_abs_error=float("nan"),
    )
    result = score_it(verdict)
    assert (result.reward, result.uses_turn) == (0.0, True)
    assert (result.fields["stage"], result.fields["outcome"]) == (Stage.CORRECTNESS, Outcome.WRONG_VALUES)
    assert len(result.fields["feedback"]) <= MAX_FEEDBACK_CHARS
    assert result.fields["feedback"].encode()
    assert result.fields["max_abs_error"] is None
    assert result.fields["trials_passed"] == 0


def test_a_task_that_cannot_be_scored_here_pays_nothing_and_uses_a_turn() -> None:
    result = score_it(Verdict("id", "correctness", "unscorable_task", feedback="too large for this GPU"))
    assert (result.reward, result.uses_turn) == (None, True)
    assert result.fields["feedback"] == "too large for this GPU"


def test_an_infrastructure_verdict_keeps_its_detail_to_itself() -> None:
    verdict = Verdict("id", "timing", "infrastructure", feedback="/path", infra_code="disk", infra_detail="/path")
    result = score_it(verdict)
    assert (result.reward, result.uses_turn) == (None, False)
    assert result.fields["infra_code"] is InfraCode.DISK
    assert result.fields["stage"] is Stage.TIMING
    assert "/path" not in result.fields["feedback"]


def test_an_unheard_of_infrastructure_code_is_still_infrastructure() -> None:
    result = score_it(Verdict("id", "nowhere", "infrastructure", infra_code="gremlins"))
    assert (result.reward, result.fields["infra_code"]) == (None, InfraCode.JUDGE_ERROR)
