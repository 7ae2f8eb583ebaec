"""Every attack of the registry against the real judge on the CPU: none is paid more than an honest kernel.

The static checks are switched off here (requests go to the evaluator directly), so that the defence itself is tested.
At the end the table is printed with its counts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import TABLE, make_settings

from server.pool import PoolEvaluator
from server.scoring import Score, score
from server.static_checks import check
from server.tasks import TaskSource
from server.worker.protocol import Evaluate
from tests.adversarial.registry import ATTACKS, ATTACKS_DIR, Attack
from tests.cpu_pool import NEEDS_CPU_EVALUATOR

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 120.0
# On the CPU every kernel runs through an interpreter, far slower than the reference, and gets the least reward that a
# correct kernel can get; a forged time gets up to 3.2 more.
REWARD_NOISE = 0.05

ON_CPU = [attack for attack in ATTACKS if "cpu" in attack.on]


def _parameters() -> list[object]:
    parameters = []
    for attack in ON_CPU:
        reason = attack.open_reason("cpu")
        marks = [pytest.mark.xfail(strict=True, reason=reason, raises=Paid)] if reason else []
        parameters.append(pytest.param(attack, id=attack.name, marks=marks))
    return parameters


class Paid(AssertionError):
    """An attack got more than it may."""


@dataclass(eq=False)
class Arena:
    """One evaluator for all attacks, and the honest rewards measured on it."""

    evaluator: PoolEvaluator
    tasks: TaskSource = field(default_factory=lambda: TaskSource.builtin(small=True))
    honest: dict[str, float] = field(default_factory=dict)

    def submit(self, code: str, task_id: str, language: str) -> Score:
        """The score of one submission, past the static checks."""
        request = Evaluate(
            eval_id=uuid.uuid4().hex,
            task_id=task_id,
            task_source=self.tasks.get(task_id).source,
            code=code,
            language=language,
            trials=3,
            timed_runs=3,
            run_timeout_s=20.0,
        )
        result = asyncio.run(self.evaluator.evaluate(request, DEADLINE_S))
        return score(result.verdict, make_settings(evaluator="cpu"), result.device, task_id)

    def honest_reward(self, task_id: str) -> float:
        """What the repository's own kernel for this task is paid here."""
        if task_id not in self.honest:
            found = self.submit((EXAMPLES / f"{task_id}.py").read_text(encoding="utf-8"), task_id, "triton")
            assert found.reward, found.fields
            self.honest[task_id] = found.reward
        return self.honest[task_id]

    @property
    def sandbox(self) -> str:
        """The level that submissions run at."""
        assert self.evaluator.device is not None
        return self.evaluator.device.sandbox


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    evaluator = PoolEvaluator(make_settings(evaluator="cpu"))
    evaluator.start()
    try:
        yield Arena(evaluator)
    finally:
        evaluator.close()


@NEEDS_CPU_EVALUATOR
@pytest.mark.parametrize("attack", _parameters())
def test_attack_is_not_paid(attack: Attack, arena: Arena, record_property: Callable[[str, object], None]) -> None:
    if attack.needs and not set(attack.needs) & set(arena.sandbox.split("+")):
        pytest.skip(f"the sandbox has none of {', '.join(attack.needs)} here")
    honest = arena.honest_reward(attack.task_id)
    scores = [arena.submit(attack.code, attack.task_id, attack.language) for _ in range(attack.times)]
    last = scores[-1]
    rewards = [found.reward for found in scores]
    limit = 0.0 if attack.must == "rejected" else honest + REWARD_NOISE
    faults = [str(found.fields["infra_code"]) for found in scores if found.reward is None]
    stopped = not faults and all(reward is not None and reward <= limit for reward in rewards)
    what = "stopped" if stopped else "expected to get through" if attack.open_reason("cpu") else "GOT THROUGH"
    row = (
        f"{attack.name:34} {attack.row:>4} {last.fields['stage']!s:11} {last.fields['outcome']!s:16} "
        f"{'none' if last.reward is None else f'{last.reward:.2f}':>5} {what:24} {attack.defence}"
    )
    record_property(f"{TABLE}attacks on {arena.sandbox}", (what, row))
    if not stopped:
        raise Paid(f"rewards {rewards}, an honest kernel {honest}, faults {faults}: {last.fields['feedback']}")


@NEEDS_CPU_EVALUATOR
def test_an_honest_kernel_is_paid_after_all_attacks(arena: Arena) -> None:
    task_id = "level1/19_ReLU"
    assert arena.submit((EXAMPLES / f"{task_id}.py").read_text(encoding="utf-8"), task_id, "triton").reward
    (worker,) = arena.evaluator.status()["workers"]
    assert worker["faults"] == 0


@pytest.mark.parametrize("attack", [pytest.param(attack, id=attack.name) for attack in ATTACKS])
def test_static_checks_say_what_the_table_says(attack: Attack) -> None:
    assert bool(check(attack.code, attack.language)) is attack.static


def test_every_file_is_in_the_table_once() -> None:
    assert sorted(attack.path for attack in ATTACKS) == sorted(ATTACKS_DIR.glob("*.py"))
    assert len({attack.mechanism for attack in ATTACKS}) == len(ATTACKS)
    assert len(ON_CPU) >= 60
