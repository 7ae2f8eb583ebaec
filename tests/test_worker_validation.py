"""The trusted judge's comparison and broader inputs, on a CPU-only PyTorch: what passes, and what must not."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from server.worker import tree  # noqa: E402
from server.worker.compare import (  # noqa: E402
    Comparison,
    ReferenceNonfinite,
    ReferenceUnusable,
    compare,
    compare_scalars,
)
from server.worker.inputs import InputFamily, extra_trials  # noqa: E402

SOFTMAX = "level1/23_Softmax"
FROBENIUS = "level1/37_FrobeniusNorm_"
RELU = "level1/19_ReLU"
ARGMAX = "level1/51_Argmax_over_a_dimension"
ARGMIN = "level1/52_Argmin_over_a_dimension"
OTHER = "level2/1_Anything"
ACTIVATIONS = {
    RELU: torch.relu,
    "level1/20_LeakyReLU": nn.functional.leaky_relu,
    "level1/29_Softplus": nn.functional.softplus,
    "level1/31_ELU": nn.functional.elu,
    "level1/88_MinGPTNewGelu": lambda x: nn.functional.gelu(x, approximate="tanh"),
}


def judge(actual: Any, expected: Any, task_id: str = OTHER, inputs: Any = (), tol: float = 1e-2) -> Comparison:
    return compare([actual], [expected], task_id=task_id, atol=tol, rtol=tol, inputs=inputs)


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[1 << 24, 7], ids=["whole", "chunked"], autouse=True)
def chunk_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds with tensors cut into tiny chunks too."""
    monkeypatch.setattr(tree, "CHUNK_ELEMENTS", request.param)


# ---------------------------------------------------------------- compare: what must not pass


def test_equal_and_nearly_equal_outputs_pass() -> None:
    expected = rand(13, 11)
    result = judge(expected + 0.005, expected)
    assert result.ok and result.outcome is None and result.sentence() == ""
    assert result.max_abs_error == pytest.approx(0.005, rel=1e-3)
    assert judge(expected.t().contiguous().t(), expected).ok


@pytest.mark.parametrize(
    "attack",
    [
        lambda e: torch.zeros_like(e),
        lambda e: e.mean().expand_as(e),
        lambda e: e * 1.05,
        lambda e: e + 0.05,
        torch.flip,
    ],
    ids=["zeros", "mean", "five percent", "shifted", "flipped"],
)
def test_wrong_values(attack: Any) -> None:
    expected = rand(13, 11) + 1.0
    actual = attack(expected, (0,)) if attack is torch.flip else attack(expected)
    assert judge(actual, expected).outcome == "wrong_values"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_nonfinite_value_fails_and_is_located(value: float) -> None:
    expected = rand(13, 11)
    actual = expected.clone()
    actual[7, 3] = value
    result = judge(actual, expected)
    assert (result.outcome, result.index, result.wrong_count) == ("nonfinite", (7, 3), 1)
    assert "[7, 3]" in result.sentence() and math.isfinite(result.max_abs_error or 0.0)
    assert judge(torch.full_like(expected, value), expected).outcome == "nonfinite"


def test_an_enormous_tolerance_does_not_let_nonfinite_or_overflow_pass() -> None:
    expected = torch.full((4,), -3e38)
    assert judge(torch.full((4,), math.inf), expected, tol=10.0).outcome == "nonfinite"
    overflow = judge(-expected, expected, tol=10.0)
    assert overflow.outcome == "wrong_values" and math.isfinite(overflow.max_abs_error or math.inf)


def test_infinite_reference_wants_the_same_infinity_and_nan_reference_is_no_wildcard() -> None:
    expected = torch.tensor([1.0, math.inf, -math.inf])
    assert judge(expected.clone(), expected).ok
    assert judge(torch.tensor([1.0, 3e38, -math.inf]), expected).outcome == "wrong_values"
    wrong_sign = judge(torch.tensor([1.0, math.inf, math.inf]), expected)
    assert (wrong_sign.outcome, wrong_sign.index) == ("wrong_values", (2,))
    assert not judge(torch.tensor([1.0, math.nan, -math.inf]), expected).ok
    with pytest.raises(ReferenceNonfinite):
        judge(torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan]))


@pytest.mark.parametrize("shape", [(), (1,), (13, 1), (1, 13, 11), (11, 13), (143,)])
def test_shapes_that_broadcast_or_only_have_the_same_elements_fail(shape: tuple[int, ...]) -> None:
    result = judge(torch.ones(shape), torch.ones(13, 11))
    assert result.outcome == "wrong_shape" and str(list(shape)) in result.sentence()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_another_dtype_fails(dtype: Any) -> None:
    result = judge(torch.ones(4, dtype=dtype), torch.ones(4))
    assert result.outcome == "wrong_dtype" and str(dtype)[6:] in result.sentence()


@pytest.mark.parametrize("chunk_elements", [1 << 24, 1000], indirect=True)
def test_one_wrong_element_in_a_million() -> None:
    expected = rand(1000, 1000)
    actual = expected.clone()
    actual[999, 998] += 0.05
    result = judge(actual, expected)
    assert (result.outcome, result.index, result.wrong_count) == ("wrong_values", (999, 998), 1)
    assert result.wrong_fraction == 1e-6
    assert result.expected == expected[999, 998].item() and result.actual == actual[999, 998].item()


def test_the_worst_element_is_the_one_reported_even_next_to_larger_errors_within_tolerance() -> None:
    expected = torch.tensor([[1e4, 0.0, 0.0], [1.0, 1.0, 0.0]])
    actual = expected + torch.tensor([[50.0, 0.02, 0.0], [0.0, 0.3, 0.03]])
    result = judge(actual, expected)
    assert (result.wrong_count, result.index) == (3, (1, 1))
    assert result.max_abs_error == 50.0


def test_16_bit_outputs_are_compared_in_float32() -> None:
    expected = torch.full((5,), 60000.0, dtype=torch.float16)
    assert judge(torch.full((5,), -60000.0, dtype=torch.float16), expected).outcome == "wrong_values"
    assert judge(expected - 320, expected).ok
    assert judge((expected.float() * 0.97).half(), expected).outcome == "wrong_values"


def test_the_first_wrong_output_of_several_decides_and_is_named() -> None:
    good, bad = [torch.ones(3), torch.zeros(2)], [torch.ones(3), torch.ones(2)]
    result = compare(bad, good, task_id=OTHER, atol=1e-2, rtol=1e-2)
    assert result.output == 1 and "output['b']" in result.sentence(["output['a']", "output['b']"])
    assert compare(good[:1], good, task_id=OTHER, atol=1e-2, rtol=1e-2).outcome == "wrong_structure"


def test_integers_and_bools_are_exact() -> None:
    expected = torch.tensor([2**60, 5, -3])
    assert judge(expected.clone(), expected, tol=1.0).ok
    result = judge(expected + torch.tensor([1, 0, 0]), expected, tol=1.0)
    assert (result.outcome, result.index) == ("wrong_values", (0,))
    assert judge(torch.tensor([True, True]), torch.tensor([True, False])).index == (1,)


def test_scalar_and_empty_outputs() -> None:
    result = judge(torch.tensor(1.5), torch.tensor(1.0))
    assert (result.outcome, result.index) == ("wrong_values", ())
    assert judge(torch.empty(0, 3), torch.empty(0, 3)).ok


# ---------------------------------------------------------------- softmax, Frobenius, argmax


def test_softmax_scaled_tolerance_and_normalization() -> None:
    expected = rand(6, 1000).softmax(dim=1)
    assert judge(expected * (1 + 1e-4 * rand(6, 1000, seed=1)), expected, SOFTMAX).ok
    assert judge(torch.zeros_like(expected), expected, OTHER).ok  # why the special rule exists
    for attack in (torch.zeros_like(expected), torch.full_like(expected, 1e-3), expected * 1.02):
        assert judge(attack, expected, SOFTMAX).outcome == "wrong_values"
    unnormalized = judge(expected * 1.005, expected, SOFTMAX)
    assert unnormalized.outcome == "not_normalized" and "sums to 1.005" in unnormalized.sentence()
    one_row = expected.clone()
    one_row[4] *= 0.995
    assert "row 4 " in judge(one_row, expected, SOFTMAX).sentence()


def test_softmax_rejects_negative_values_within_the_tolerance() -> None:
    x = torch.zeros(3, 50)
    x[:, 7] = 108.0
    expected = x.softmax(dim=1)
    actual = expected.clone()
    actual[2, 3] = -1e-6
    assert judge(expected.clone(), expected, SOFTMAX).ok
    assert judge(actual, expected, SOFTMAX).outcome == "not_normalized"


def test_softmax_in_bfloat16_is_not_failed_for_the_rounding_of_its_largest_value() -> None:
    expected = torch.tensor([[0.0, 6.21]]).softmax(dim=1).bfloat16()
    assert abs(float(expected.float().sum(dim=1)[0]) - 1.0) > 1e-3
    assert judge(expected.clone(), expected, SOFTMAX).ok


def test_frobenius_scaled_tolerance_and_one_global_norm() -> None:
    x = rand(4, 5, 30, 30)
    expected = x / x.norm()
    assert judge(expected.clone(), expected, FROBENIUS).ok
    per_sample = x / x.flatten(1).norm(dim=1).view(4, 1, 1, 1)
    for attack in (torch.zeros_like(x), per_sample, x, expected * 1.02, -expected):
        assert judge(attack, expected, FROBENIUS).outcome == "wrong_values"
    assert judge(expected * 1.005, expected, FROBENIUS).outcome == "not_normalized"
    with pytest.raises(ReferenceUnusable):
        judge(x, x, FROBENIUS)


@pytest.mark.parametrize(("task_id", "pick"), [(ARGMAX, torch.argmax), (ARGMIN, torch.argmin)])
@pytest.mark.parametrize("shape", [(3, 8, 5), (4, 4, 4)], ids=["distinct sizes", "ambiguous sizes"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_argmax_accepts_ties_and_nothing_else(task_id: str, pick: Any, shape: tuple[int, ...], keepdim: bool) -> None:
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(1)).float()
    x[0, :2, 0] = 9.0 if pick is torch.argmax else -9.0
    expected = pick(x, dim=1, keepdim=keepdim)
    tie = expected.clone()
    tie.view(-1)[0] = 1 - int(expected.view(-1)[0])
    assert judge(tie, expected, task_id, [x]).ok
    assert judge(tie, expected, OTHER, [x]).outcome == "wrong_values"
    for value in (2, -1, shape[1], 2**40):
        wrong = expected.clone()
        wrong.view(-1)[0] = value
        assert judge(wrong, expected, task_id, [x]).outcome == "wrong_values"
    assert judge(torch.zeros_like(expected), expected, task_id, [x]).outcome == "wrong_values"


def test_scalars() -> None:
    def both(actual: Any, expected: Any) -> Comparison:
        return compare_scalars(tree.flatten(actual)[0], tree.flatten(expected)[0], atol=1e-2, rtol=1e-2)

    assert both((1, 2.005, True, None, "a"), [1, 2.0, True, None, "a"]).ok
    assert both(2, 2.0).ok and both(math.inf, math.inf).ok
    for actual, expected in ((2, 1), (1, True), (True, 1.0), ("a", "b"), (2.1, 2.0), (0, None), (3e38, math.inf)):
        assert both(actual, expected).outcome == "wrong_values"
    assert both(math.nan, 1.0).outcome == "nonfinite"
    assert "output[1]" in both((1.0, 2.0), (1.0, 3.0)).sentence()
    with pytest.raises(ReferenceNonfinite):
        both(math.nan, math.nan)


# ---------------------------------------------------------------- inputs


def family(task_id: str, name: str) -> InputFamily:
    return {known.name: known for known in extra_trials(task_id)}[name]


def test_families_of_the_specification() -> None:
    assert [f.name for f in extra_trials(SOFTMAX)] == ["constant", "peaked"]
    assert [f.name for f in extra_trials(FROBENIUS)] == ["signed_large", "signed_small", "sparse"]
    for task_id in ACTIVATIONS:
        assert [f.name for f in extra_trials(task_id)] == ["signed", "zeros"]
    assert extra_trials("level1/190_ReLU") == extra_trials(ARGMAX) == []


@pytest.mark.parametrize("task_id", [*ACTIVATIONS, SOFTMAX, FROBENIUS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_families_write_in_place_by_seed_and_leave_the_rest(task_id: str, dtype: Any) -> None:
    for known in extra_trials(task_id):
        x, labels = rand(6, 64).to(dtype), torch.arange(3)
        first = known.apply([x, labels, 7], seed=5)
        assert first[0] is x and first[1] is labels and first[2] == 7
        assert labels.tolist() == [0, 1, 2] and x.shape == (6, 64) and x.dtype == dtype and bool(x.isfinite().all())
        assert torch.equal(known.apply([rand(6, 64).to(dtype)], seed=5)[0], x)
        if known.name != "zeros":
            assert not torch.equal(known.apply([rand(6, 64).to(dtype)], seed=6)[0], x)


def test_family_values() -> None:
    signed = family(RELU, "signed").apply([rand(64, 64)], 1)[0]
    assert signed.min() < -30 and signed.max() > 30 and signed.abs().max() <= 32
    constant = family(SOFTMAX, "constant").apply([rand(4, 9)], 1)[0]
    assert constant.unique().numel() == 1
    peaked = family(SOFTMAX, "peaked").apply([rand(16, 500)], 1)[0]
    assert bool(((peaked > 7.9).sum(dim=1) == 1).all()) and peaked.argmax(dim=1).unique().numel() > 8
    assert peaked.max(dim=1).values.unique().numel() == 16
    sparse = family(FROBENIUS, "sparse").apply([rand(64, 1024)], 1)[0]
    assert 20 < int((sparse != 0).sum()) < 150 and sparse.min() < 0
    for seed in range(20):
        assert family(FROBENIUS, "sparse").apply([rand(3)], seed)[0].norm() > 0


@pytest.mark.parametrize("task_id", ACTIVATIONS)
def test_identity_fails_every_activation_on_signed_inputs(task_id: str) -> None:
    x = family(task_id, "signed").apply([rand(32, 32)], 3)[0]
    expected = ACTIVATIONS[task_id](x)
    assert judge(expected.clone(), expected, task_id).ok
    assert judge(x, expected, task_id).outcome == "wrong_values"


def test_softmax_without_the_row_maximum_fails_on_peaked_inputs() -> None:
    x = family(SOFTMAX, "peaked").apply([rand(16, 50)], 2)[0]
    naive = x.exp() / x.exp().sum(dim=1, keepdim=True)
    assert judge(naive, x.softmax(dim=1), SOFTMAX).outcome == "nonfinite"


def test_a_fixed_frobenius_norm_fails_on_each_family() -> None:
    usual = rand(8, 64, 16).norm()
    for known in extra_trials(FROBENIUS):
        x = known.apply([rand(8, 64, 16)], 4)[0]
        expected = x / x.norm()
        assert judge(expected.clone(), expected, FROBENIUS).ok
        assert not judge(x / usual, expected, FROBENIUS).ok
