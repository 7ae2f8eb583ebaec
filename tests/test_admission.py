"""Tasks that accept outputs that did no work: what admission makes of them, and that its trials are the judge's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.admission import TABLE_FILE, AdmissionTable
from server.errors import InvalidRequest, RequestCode, TaskSourceError
from server.prompts import extra_inputs_text
from server.tasks import TaskSource
from server.worker.protocol import Admission, Evaluate, TrialPlan
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, Pool, open_pool
from tests.cpu_submissions import GOOD, softmax

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        return {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


def source(forward: str, inputs: str = "torch.rand(16, 128)", init: str = "pass") -> str:
    return TASK.format(forward=forward, inputs=inputs, init=init)


# ---------------------------------------------------------------- the measurement


def admit(text: str, task_id: str = "level1/900_Test") -> Admission:
    pytest.importorskip("torch")
    from server.worker import admission
    from server.worker.device import CpuDevice
    from server.worker.task_context import TaskContext

    return admission.admit(TaskContext(Evaluate("", task_id, text, ""), CpuDevice()), atol=1e-2, rtol=1e-2)


def test_a_task_whose_own_inputs_tell_needs_nothing_else() -> None:
    found = admit(source("self.layer(x)", init="self.layer = nn.Linear(128, 64)"))
    assert (found.admitted, found.reason, found.plans) == (True, "", [TrialPlan("", [None])])
    assert found.margin is not None and found.margin > 100


def test_where_a_constant_passes_the_tolerance_gets_tighter() -> None:
    found = admit(source("x.sum(dim=1)", "torch.rand(16, 65536)"))
    ((_, (tight,)),) = [(plan.family, plan.atol) for plan in found.plans]
    assert found.admitted and tight is not None
    assert 0.05 < tight < 150, "above the rounding of a sum in any order, below the spread of the sums (about 74)"


def test_where_a_copy_of_the_input_passes_other_inputs_come_in() -> None:
    found = admit(source("torch.relu(x)"))
    assert found.admitted
    assert [plan.family for plan in found.plans] == ["", "normal"]


def test_an_output_that_is_always_the_same_cannot_be_scored() -> None:
    found = admit(source("torch.softmax(x.sum(dim=1, keepdim=True), dim=1) - 1.0"))
    assert not found.admitted
    assert "zeros" in found.reason and "other inputs" in found.reason


@pytest.mark.parametrize(
    ("forward", "reason"),
    [("torch.log(-x - 1)", "not finite"), ("(x * 1e6).sin()", "does not agree with itself")],
)
def test_a_reference_that_says_nothing_cannot_be_scored(forward: str, reason: str) -> None:
    found = admit(source(forward))
    assert not found.admitted and reason in found.reason


def test_weights_that_do_not_matter_are_found() -> None:
    weak = "self.layer = nn.Linear(128, 8)\n        with torch.no_grad(): self.layer.weight.mul_(1e-5)"
    found = admit(source("self.layer(x * 0.0) * 1e-3 + x.mean(dim=1, keepdim=True).round()", init=weak))
    assert not found.admitted or any(plan.atol != [None] for plan in found.plans)


# ---------------------------------------------------------------- the table


def test_the_table_has_all_of_kernelbench() -> None:
    rows = [json.loads(line) for line in TABLE_FILE.read_text(encoding="utf-8").splitlines()]
    assert len({row["task_id"] for row in rows}) == 250
    assert sum(row["admitted"] for row in rows) >= 220
    assert all(row["admitted"] == bool(row["trials"]) == (not row["reason"]) for row in rows)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    """A directory with three tasks, of which the table in it admits one and refuses one."""
    (tmp_path / "level1").mkdir()
    rows = []
    for number, admitted in ((1, True), (2, False)):
        text = source(f"x * {number}")
        (tmp_path / "level1" / f"{number}_Task.py").write_text(text)
        trials = [{"inputs": "", "atol": [1e-3]}, {"inputs": "rescaled", "atol": [None]}] if admitted else []
        digest = hashlib.sha256(text.encode()).hexdigest()
        row = {"task_id": f"level1/{number}_Task", "source_sha256": digest, "admitted": admitted, "margin": 1.0}
        rows.append(row | {"reason": "" if admitted else "it is always zero", "trials": trials})
    (tmp_path / "level1" / "3_Unknown.py").write_text(source("x"))
    (tmp_path / "admission.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield tmp_path


def test_a_task_that_is_not_admitted_is_in_no_split_and_says_why(tasks: Path) -> None:
    known = TaskSource(tasks)
    assert {*known.ids("train"), *known.ids("eval")} == {"level1/1_Task", "level1/3_Unknown"}
    with pytest.raises(InvalidRequest, match="always zero") as refusal:
        known.pick(task_id="level1/2_Task")
    assert refusal.value.code is RequestCode.UNSCORABLE_TASK
    assert known.get("level1/2_Task").split is None


def test_another_source_under_the_same_name_is_another_task(tasks: Path) -> None:
    (tasks / "level1" / "2_Task.py").write_text(source("x * 2.0 + 1.0"))
    task = TaskSource(tasks).pick(task_id="level1/2_Task")
    assert task.admission is None and task.split is not None


def test_the_model_is_told_what_its_trials_use(tasks: Path) -> None:
    task = TaskSource(tasks).get("level1/1_Task")
    text = " ".join(extra_inputs_text(task.task_id, task.admission))
    assert "factor between 1/4 and 4" in text
    assert "the absolute error may be at most 0.001" in text
    assert "0.001" not in " ".join(extra_inputs_text(task.task_id, None))


@pytest.mark.parametrize("line", ["{", "[]", '{"task_id": 1}'])
def test_a_broken_table_is_the_operators_to_mend(tasks: Path, line: str) -> None:
    with (tasks / "admission.jsonl").open("a") as table:
        table.write(line + "\n")
    with pytest.raises(TaskSourceError, match=r"admission\.jsonl"):
        AdmissionTable(tasks)


# ---------------------------------------------------------------- the judge


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool() as opened:
        yield opened


def outcome(pool: Pool, code: str, *plans: TrialPlan) -> tuple[str, int]:
    values: dict[str, Any] = {"plans": list(plans)}
    verdict = pool.score(code, **values).verdict
    assert verdict.infra_code is None
    return verdict.outcome, verdict.trials_total


@NEEDS_CPU_EVALUATOR
def test_the_judge_uses_the_tolerances_and_inputs_of_the_plan(pool: Pool) -> None:
    own, rescaled = TrialPlan("", [None]), TrialPlan("rescaled", [None])
    assert outcome(pool, GOOD, own, rescaled) == ("scored", 3)
    assert outcome(pool, GOOD, TrialPlan("", [1e-4])) == ("scored", 2)
    off = softmax(value="y / tl.sum(y, axis=0) * 1.0005")
    assert outcome(pool, off, own)[0] == "scored"
    assert outcome(pool, off, TrialPlan("", [1e-9]))[0] == "wrong_values"
    assert outcome(pool, off, own, TrialPlan("normal", [1e-9]))[0] == "wrong_values"
    wrong = softmax(value="y / tl.sum(y, axis=0) * 1.5")
    assert outcome(pool, wrong, TrialPlan("", [1e3]))[0] != "scored", "a plan never loosens the usual tolerance"
