"""Every honest kernel of the registry through the static checks and the real judge on the CPU: all are paid.

At the end the table is printed with its counts. Those that need a GPU go through the static checks alone here.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable, Iterator

import pytest
from conftest import TABLE, make_settings

from server.evaluator import Evaluator, create_evaluator
from server.scoring import Score, score
from server.static_checks import check, feedback
from server.tasks import TaskSource
from server.worker.protocol import Evaluate
from tests.adversarial.honest_registry import HONEST, HONEST_DIR, Honest
from tests.cpu_pool import NEEDS_CPU_EVALUATOR

DEADLINE_S = 280.0
# Compiling with torch's headers takes a minute on an idle machine.
SETTINGS = make_settings(evaluator="cpu", timed_runs=3, compile_timeout_s=240.0)
ON_CPU = [honest for honest in HONEST if honest.cpu]
TASKS = TaskSource.builtin(small=True)
TABLE_NAME = f"{TABLE}honest kernels, and {len(HONEST) - len(ON_CPU)} more need a GPU"


def submit(evaluator: Evaluator, honest: Honest) -> Score:
    """The score of one submission, which the static checks must have passed."""
    request = Evaluate(
        eval_id=uuid.uuid4().hex,
        task_id=honest.task_id,
        task_source=TASKS.get(honest.task_id).source,
        code=honest.code,
        language=honest.language,
        trials=SETTINGS.trials,
        timed_runs=SETTINGS.timed_runs,
        atol=SETTINGS.atol,
        rtol=SETTINGS.rtol,
        compile_timeout_s=SETTINGS.compile_timeout_s,
        run_timeout_s=SETTINGS.run_timeout_s,
    )
    result = asyncio.run(evaluator.evaluate(request, DEADLINE_S))
    return score(result.verdict, SETTINGS, result.device, honest.task_id)


def row(honest: Honest, outcome: str, reward: float | None) -> tuple[str, str]:
    """Whatever is not paid counts as rejected, a fault of ours included."""
    paid = f"{reward:.2f}" if reward is not None else "none"
    text = f"{honest.name:28} {honest.task_id[:40]:40} {outcome:16} {paid:>5} {honest.style}"
    return "paid" if reward else "REJECTED", text


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    evaluator = create_evaluator(SETTINGS)
    evaluator.start()
    try:
        yield evaluator
    finally:
        evaluator.close()


@NEEDS_CPU_EVALUATOR
@pytest.mark.parametrize("honest", [pytest.param(honest, id=honest.name) for honest in ON_CPU])
def test_honest_kernel_is_paid(
    honest: Honest, evaluator: Evaluator, record_property: Callable[[str, object], None]
) -> None:
    if honest.language == "cuda" and shutil.which("g++") is None:
        pytest.skip("C++ needs g++")
    violations = check(honest.code, honest.language, cpu=True)
    if violations:
        record_property(TABLE_NAME, row(honest, "static_violation", 0.0))
    assert not violations, feedback(violations)
    found = submit(evaluator, honest)
    record_property(TABLE_NAME, row(honest, str(found.fields["outcome"]), found.reward))
    assert found.reward, found.fields
    assert (found.fields["stage"], found.fields["outcome"]) == ("scored", "scored")


@NEEDS_CPU_EVALUATOR
def test_no_honest_kernel_costs_a_worker(evaluator: Evaluator) -> None:
    (worker,) = evaluator.status()["workers"]
    assert worker["faults"] == 0


@pytest.mark.parametrize("honest", [pytest.param(honest, id=honest.name) for honest in HONEST if not honest.cpu_only])
def test_static_checks_accept_it_for_a_gpu(honest: Honest) -> None:
    violations = check(honest.code, honest.language)
    assert not violations, feedback(violations)


def test_every_file_is_in_the_table_once() -> None:
    assert sorted(honest.path for honest in HONEST) == sorted(HONEST_DIR.glob("*.py"))
    assert len({honest.name for honest in HONEST}) == len({honest.style for honest in HONEST}) == len(HONEST)
    assert {honest.task_id for honest in HONEST} <= set(TaskSource.builtin().task_ids)
    assert len(ON_CPU) >= 40
