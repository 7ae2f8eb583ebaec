"""`kernel-env baseline`: which references are timed, what is said of those that cannot be, that a judge times them."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from conftest import ScriptedEvaluator, make_settings

from kernel_env import cli
from server import baseline
from server.evaluator import EvalResult
from server.pool import PoolEvaluator
from server.submission import evaluation_request
from server.tasks import TaskSource
from server.worker.protocol import Evaluate, Verdict
from tests.cpu_pool import NEEDS_CPU_EVALUATOR


async def timed(request: Evaluate) -> EvalResult:
    """As a judge that has timed the reference and then found no model."""
    return EvalResult(Verdict(request.eval_id, "compile", "missing_model"))


async def broken(request: Evaluate) -> EvalResult:
    """As a judge whose reference fails."""
    return EvalResult(Verdict(request.eval_id, "compile", "unscorable_task", feedback="This task cannot be scored."))


@pytest.mark.parametrize("split", [None, "train", "eval"])
def test_every_task_of_the_split_is_timed_once(split: str | None) -> None:
    evaluator = ScriptedEvaluator(timed)
    assert baseline.measure(make_settings(evaluator="mock"), split, "level1/", evaluator) == []
    source = TaskSource.builtin()
    wanted = [task_id for task_id in source.task_ids if task_id.startswith("level1/")]
    if split is not None:
        wanted = [task_id for task_id in wanted if source.get(task_id).split == split]
    assert wanted and sorted(request.task_id for request in evaluator.requests) == sorted(wanted)
    assert evaluator.closed.is_set()


def test_a_reference_that_cannot_be_timed_is_named() -> None:
    evaluator = ScriptedEvaluator(broken)
    failed = baseline.measure(make_settings(evaluator="mock"), None, "19_ReLU", evaluator)
    assert failed == [("level1/19_ReLU", "This task cannot be scored.")]


def test_without_a_gpu_there_is_nothing_to_keep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_EVALUATOR", "mock")
    assert cli.main(["baseline"]) == 2
    assert "KERNEL_ENV_EVALUATOR=mock" in capsys.readouterr().err


@pytest.mark.parametrize(("failed", "code"), [([], 0), ([("level1/19_ReLU", "it fails")], 3)])
def test_the_exit_code_says_whether_all_were_timed(
    failed: list[tuple[str, str]], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_EVALUATOR", "gpu")
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(baseline, "measure", lambda settings, *rest: asked.append(rest) or failed)
    assert cli.main(["baseline", "--split", "eval", "--only", "Re"]) == code
    assert asked == [("eval", "Re")]
    assert ("it fails" in capsys.readouterr().err) is bool(failed)


@NEEDS_CPU_EVALUATOR
def test_a_judge_times_the_reference_before_it_looks_at_a_submission() -> None:
    settings = make_settings(evaluator="cpu")
    task = TaskSource.open(settings, "cpu").get("level1/19_ReLU")
    evaluator = PoolEvaluator(settings)
    evaluator.start()
    try:
        request = evaluation_request(settings, uuid.uuid4().hex, task, "triton", baseline._NO_SUBMISSION)
        verdict = asyncio.run(evaluator.evaluate(request, 120.0)).verdict
    finally:
        evaluator.close()
    assert verdict.outcome == baseline._EXPECTED, verdict
    assert verdict.phase_seconds["baseline"] > 0
