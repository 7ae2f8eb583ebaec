"""Tasks and weights on the cpu evaluator: every example, packed weights, and references of unusual forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.evaluator import EvalResult
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, TASKS, Pool, open_pool

pytestmark = NEEDS_CPU_EVALUATOR

EXAMPLES = Path(__file__).parents[1] / "examples"
LAYER_NORM = "level1/40_LayerNorm"
GEMM = "level2/76_Gemm_Add_ReLU"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One evaluator for the module."""
    with open_pool() as opened:
        yield opened


def example(task_id: str, **changes: str) -> str:
    """An example's source; each change replaces one marked place (see CHANGES)."""
    code = (EXAMPLES / f"{task_id}.py").read_text()
    for name, new in changes.items():
        old = CHANGES[name]
        assert old in code, f"the example has no {old!r} any more"
        code = code.replace(old, new)
    return code


CHANGES = {
    "after_init": "        self.bias = nn.Parameter(torch.randn(bias_shape))\n",
    "weight": "weight = self.gemm.weight",
    "gain": "weight = tl.load(weight_ptr + column, mask=inside)",
    "offset": "bias = tl.load(bias_ptr + column, mask=inside)",
}


def outcome(result: EvalResult) -> tuple[str, str]:
    """Stage and outcome; a fault of ours fails the test here, with its detail."""
    verdict = result.verdict
    assert verdict.infra_code is None, f"{verdict.infra_code}: {verdict.infra_detail}"
    return verdict.stage, verdict.outcome


SCORED = ("scored", "scored")


@pytest.mark.parametrize("task_id", TASKS.task_ids)
def test_every_builtin_task_has_a_correct_example(pool: Pool, task_id: str) -> None:
    result = pool.score(example(task_id), task_id)
    assert outcome(result) == SCORED, result.verdict.feedback
    verdict = result.verdict
    assert verdict.correct and verdict.trials_passed == verdict.trials_total >= 2
    assert verdict.t_ref_ms and verdict.t_new_ms
    assert verdict.facts is not None and verdict.facts.input_bytes > 0 and verdict.facts.output_bytes > 0


# ---------------------------------------------------------------- weights


def test_weights_packed_under_another_name_are_scored(pool: Pool) -> None:
    packing = CHANGES["after_init"] + (
        "        self.packed = nn.Parameter(self.gemm.weight.detach().t().contiguous())\n        del self.gemm\n"
    )
    code = example(GEMM, after_init=packing, weight="weight = self.packed.t().contiguous()")
    assert outcome(pool.score(code, GEMM)) == SCORED


@pytest.mark.parametrize("holder", ["{}", "[{}]", "{{'w': {}}}"], ids=["plain attribute", "list", "dictionary"])
def test_weights_packed_outside_the_parameters_are_scored(pool: Pool, holder: str) -> None:
    """The names equal the reference's, but weights loaded into them would not reach the packed copy."""
    packed = holder.format("self.gemm.weight.detach().clone()")
    access = {"{}": "self.packed", "[{}]": "self.packed[0]"}.get(holder, "self.packed['w']")
    code = example(
        GEMM, after_init=f"{CHANGES['after_init']}        self.packed = {packed}\n", weight=f"weight = {access}"
    )
    assert outcome(pool.score(code, GEMM)) == SCORED


@pytest.mark.parametrize(
    "change",
    [{"gain": "weight = 1.0"}, {"offset": "bias = 0.0"}],
    ids=["gain of one", "bias of zero"],
)
def test_ignored_weights_are_found_out_by_perturbed_ones(pool: Pool, change: dict[str, str]) -> None:
    """A fresh LayerNorm multiplies by 1 and adds 0, so only the second half of the trials can tell."""
    result = pool.score(example(LAYER_NORM, **change), LAYER_NORM, trials=4)
    assert outcome(result) == ("correctness", "wrong_values")
    assert result.verdict.trials_passed == 2


def test_weights_drawn_in_another_order_are_wrong(pool: Pool) -> None:
    """Renamed, so that nothing is loaded: the construction seed alone must give the reference's weights."""
    code = example(
        GEMM,
        after_init="        torch.randn(3)\n        self.bias = nn.Parameter(torch.randn(bias_shape))\n"
        "        self.packed = nn.Parameter(self.gemm.weight.detach().clone())\n        del self.gemm\n",
        weight="weight = self.packed",
    )
    assert outcome(pool.score(code, GEMM)) == ("correctness", "wrong_values")


# ---------------------------------------------------------------- references of unusual forms

# Their work is only layout and copies, which the guard allows: the submission is the reference under its other name.
_TASK = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y=None):
        return {returned}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return []
"""


def custom(returned: str, inputs: str = "[torch.randn(4, 6)]") -> str:
    """A task of one expression over its inputs."""
    return _TASK.format(returned=returned, inputs=inputs)


def score(pool: Pool, task: str, returned: str) -> EvalResult:
    """The result of a submission that returns another expression on the same task."""
    submission = custom(returned).replace("class Model(", "class ModelNew(")
    # As C++: a Triton submission without a kernel, which this is, does its work elsewhere.
    return pool.score(submission, "level1/900_Custom", source=task, language="cuda")


@pytest.mark.parametrize(
    ("returned", "inputs"),
    [
        ("x.t()", "[torch.randn(4, 6)]"),
        ("(x.clone(), (x[0], [y]))", "[torch.randn(4, 6), torch.randint(0, 9, (5,))]"),
        ("(x.half(), x.to(torch.int8), x > 0 if False else y)", "[torch.randn(4, 6), torch.ones(3).bool()]"),
        ("(x, x.shape[0], 1.5, True, None, y)", "[torch.randn(4, 6), 7]"),
        ("x.expand(3, 4, 6)", "[torch.randn(4, 6)]"),
        ("x[0, :0]", "[torch.randn(4, 6)]"),
        ("x[0, 0]", "[torch.randn(4, 6)]"),
        ("(x, x)", "[torch.randn(4, 6)]"),
        ("x.view(1, 4, 2, 3).contiguous(memory_format=torch.channels_last)", "[torch.randn(4, 6)]"),
        ("y.clone()", "[torch.randn(4, 6), torch.randn(3, 5).t()]"),
        ("x.clone()", "[torch.randn(4, 6).bfloat16()]"),
        ("x.clone()", "[torch.randn(4, 6).double()]"),
    ],
)
def test_outputs_and_inputs_of_many_forms(pool: Pool, returned: str, inputs: str) -> None:
    result = score(pool, custom(returned, inputs), returned)
    assert outcome(result) == SCORED, result.verdict.feedback


@pytest.mark.parametrize(
    ("reference", "returned", "expected"),
    [
        ("(x, 3)", "(x, 4)", "wrong_values"),
        ("(x, 3)", "(x, None)", "wrong_values"),
        ("(x, x[0])", "(x,)", "wrong_structure"),
        ("x", "(x,)", "wrong_structure"),
        ("(x, x[0])", "(x, x[1])", "wrong_values"),
        ("x.t()", "x.reshape(6, 4)", "wrong_values"),
        ("x[0, 0]", "x[:1, :1]", "wrong_shape"),
        ("x", "x.double()", "wrong_dtype"),
        ("x.to(torch.int64)", "x.to(torch.int32)", "wrong_dtype"),
        ("x", "x.detach().numpy()", "wrong_structure"),
        ("x", "{'out': x}", "wrong_structure"),
        ("x", "[x] * 3000", "wrong_structure"),
        ("x", "'x' * 100000", "wrong_structure"),
        ("x", "x.to('meta')", "wrong_structure"),
    ],
)
def test_each_difference_from_the_reference_has_its_name(
    pool: Pool, reference: str, returned: str, expected: str
) -> None:
    result = score(pool, custom(reference), returned)
    assert outcome(result) == ("correctness", expected), result.verdict.feedback
    assert len(result.verdict.feedback) < 4000


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (custom("x.log()", "[torch.full((4, 6), -1.0)]"), "NaN"),
        (custom("x", "[torch.randn(int(torch.randint(2, 1000, ())), 3)]"), "shapes"),
        (custom("x @ x"), "mat1"),
        (custom("x").replace("def get_inputs", "def other_inputs"), "get_inputs"),
        (custom("x") + "raise ValueError('no such data')\n", "no such data"),
        (custom("x") + "def forward(:\n", "SyntaxError"),
        (custom("x", "[torch.randn(4, 6).to(torch.complex64)]"), "complex64"),
    ],
)
def test_a_task_that_cannot_be_scored_says_why_and_is_no_fault_of_ours(pool: Pool, task: str, why: str) -> None:
    result = score(pool, task, "x.clone()")
    assert result.verdict.outcome == "unscorable_task", result.verdict.infra_detail
    assert why in result.verdict.feedback
    assert result.verdict.infra_code is None


def test_an_answer_of_an_earlier_call_is_not_left_in_the_outputs_memory(pool: Pool) -> None:
    """From the second call on the output lies in memory shared with the judge: who writes nothing returns NaN."""
    submission = (
        custom("x")
        .replace("class Model(", "class ModelNew(")
        .replace(
            "        return x\n",
            "        out = torch.empty_like(x)\n        self.calls = getattr(self, 'calls', 0) + 1\n"
            "        return out.copy_(x) if self.calls == 1 else out\n",
        )
    )
    result = pool.score(submission, "level1/900_Custom", source=custom("x"))
    assert outcome(result) == ("correctness", "nonfinite")
    assert result.verdict.trials_passed == 1


def test_weights_packed_as_a_buffer_of_an_unusual_dtype_are_scored(pool: Pool) -> None:
    """Such a state cannot be exchanged, so its weights are only ever reseeded."""
    code = example(
        GEMM,
        after_init=CHANGES["after_init"]
        + ("        self.register_buffer('table', torch.zeros(3, dtype=torch.complex64))\n"),
    )
    assert outcome(pool.score(code, GEMM)) == SCORED
