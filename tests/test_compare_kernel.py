"""The one-pass comparison against the comparison in chunks, which it must never contradict.

The kernels run on a GPU where there is one, and everywhere in Triton's interpreter: that has to be chosen before triton
is imported, so the first test runs the kernels' tests in a process of its own.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from server.worker import compare, compare_kernel  # noqa: E402
from server.worker.compare import Comparison, ReferenceNonfinite  # noqa: E402
from server.worker.compare_kernel import BLOCK, COLUMN_GROUP, DTYPES, all_right  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")
RUNS_KERNELS = INTERPRETED or DEVICE.type == "cuda"
QUIET = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")  # infinity minus infinity
SOFTMAX = "level1/23_Softmax"
FROBENIUS = "level1/37_FrobeniusNorm_"
SIZES = (1, 5, 127, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 17)


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_the_kernels_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    # In that one process, not in others that pytest would start below it.
    options = ["-n", "0", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"{Path(__file__)}::TestKernels"]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.skipif(RUNS_KERNELS, reason="Triton can compile here")
def test_where_triton_cannot_compile_nothing_is_taken() -> None:
    assert not compare_kernel.warm_up(DEVICE)
    values = torch.ones(4)
    assert all_right(values, values, atol=0.0, rtol=0.0) == (False, None)
    assert compare.compare([values], [values], task_id="level2/1_Any", atol=0.0, rtol=0.0).ok


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """The kernels in use, as in a judge that has started."""
    assert compare_kernel.warm_up(DEVICE)
    yield
    compare_kernel._ready.clear()


def in_chunks(got: Any, want: Any, atol: float, rtol: float) -> tuple[bool, float | None]:
    """What `all_right` must say, by the comparison in chunks."""
    try:
        result = compare._compare_in_chunks(got, want, 0, atol, rtol)
    except ReferenceNonfinite:
        return False, None
    return result.ok, result.max_abs_error if result.ok else None


def tensor(values: Any, dtype: Any = torch.float32) -> Any:
    return torch.tensor(values, dtype=torch.float64).to(dtype).to(DEVICE)


def neighbours(value: Any, steps: int) -> list[Any]:
    """The values up to `steps` representable numbers away from a tensor's, which are not zero or near an overflow."""
    bits = torch.int32 if value.dtype == torch.float32 else torch.int16
    return [(value.view(bits) + step).view(value.dtype) for step in range(-steps, steps + 1)]


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def softmax(rows: int = 3, columns: int = BLOCK + 3 * COLUMN_GROUP) -> Any:
    return torch.randn(rows, columns, generator=seeded(0)).softmax(dim=1).to(DEVICE)


@QUIET
@pytest.mark.usefixtures("warm")
class TestKernels:
    __test__ = RUNS_KERNELS

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(
        seed=st.integers(0, 2**32),
        dtype=st.sampled_from(DTYPES),
        numel=st.sampled_from(SIZES),
        exponents=st.sampled_from([0.5, 4, 20, 128, 150]),
        atol=st.sampled_from([0.0, 1e-44, 1e-40, 1e-5, 1e-2, 3e38]),
        rtol=st.sampled_from([0.0, 1e-44, 1e-5, 1e-2, 1.0, 3e38]),
        off=st.sampled_from([0.0, 0.5, 0.999, 1.0, 1.001]),
        infinities=st.sampled_from([0.0, 0.1, 1.0]),
        special=st.sampled_from([None, 0.0, -0.0, 1e-45, 1e-40, 6e-8, 65504.0, 3.4028234e38, math.inf, math.nan]),
        sign=st.sampled_from([1.0, -1.0]),
        into=st.sampled_from(["got", "want", "both"]),
    )
    def test_the_same_verdict_and_error_as_in_chunks(
        self, seed: int, dtype: Any, numel: int, exponents: float, atol: float, rtol: float, off: float,
        infinities: float, special: float | None, sign: float, into: str,
    ) -> None:  # fmt: skip
        generator = seeded(seed)
        uniform = torch.rand(4, numel, generator=generator, dtype=torch.float64)
        signs = torch.where(uniform[3] < 0.5, -1.0, 1.0)
        want = (signs * ((2 * uniform[0] - 1) * exponents).exp2()).to(dtype)
        want[uniform[2] < infinities] *= math.inf
        tolerance = want.float().abs().mul_(rtol).add_(atol)
        got = (want.float() + tolerance * (2 * uniform[1].float() - 1) * off).to(dtype)
        got = torch.where(want.isfinite(), got, want)
        if special is not None:
            at = seed % numel
            for name, values in (("got", got), ("want", want)):
                if into in (name, "both"):
                    values[at] = torch.tensor(sign * special).to(dtype)
        if INTERPRETED and dtype == torch.bfloat16:
            # The interpreter takes bfloat16's denormals for zero; a GPU does not.
            for values in (got, want):
                values[values.abs() < torch.finfo(dtype).tiny] = 0.0
        got, want = got.to(DEVICE), want.to(DEVICE)
        assert all_right(got, want, atol=atol, rtol=rtol) == in_chunks(got, want, atol, rtol)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("atol", "rtol"), [(1e-2, 1e-2), (1e-5, 0.0), (0.0, 0.3), (1.0, 1e-3)])
    def test_the_tolerance_ends_at_the_same_number(self, dtype: Any, atol: float, rtol: float) -> None:
        verdicts: dict[bool, int] = {True: 0, False: 0}
        for value in torch.randn(8, generator=seeded(1)).tolist():
            want = tensor([value], dtype)
            limit = want.double() + (abs(want.double()) * rtol + atol) * math.copysign(1.0, value)
            for got in neighbours(limit.to(dtype), 2):
                verdict = all_right(got, want, atol=atol, rtol=rtol)
                assert verdict == in_chunks(got, want, atol, rtol)
                verdicts[verdict[0]] += 1
        assert min(verdicts.values()) > 0

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("numel", SIZES)
    def test_one_wrong_element_is_seen_wherever_it_is(self, dtype: Any, numel: int) -> None:
        want = torch.randn(numel, generator=seeded(2)).to(dtype).to(DEVICE)
        assert all_right(want.clone(), want, atol=0.0, rtol=0.0) == (True, 0.0)
        for at in {0, numel // 2, min(numel, BLOCK) - 1, numel - 1}:
            for value in (want[at] + 1.0, math.nan, math.inf, -math.inf):
                got = want.clone()
                got[at] = value
                assert all_right(got, want, atol=0.5, rtol=0.0) == (False, None)

    @pytest.mark.parametrize("numel", SIZES)
    def test_infinities_must_be_the_same_and_are_no_error(self, numel: int) -> None:
        want = torch.full((numel,), -math.inf, device=DEVICE)
        assert all_right(want.clone(), want, atol=1.0, rtol=1.0) == (True, None)
        assert all_right(-want, want, atol=1.0, rtol=1.0) == (False, None)
        assert all_right(torch.full_like(want, -3e38), want, atol=1.0, rtol=1.0) == (False, None)

    def test_a_nan_of_the_reference_and_an_overflow_are_never_right(self) -> None:
        nan, large = tensor([1.0, math.nan]), tensor([3e38, 1.0])
        assert all_right(nan.clone(), nan, atol=3e38, rtol=3e38) == (False, None)
        assert all_right(-large, large, atol=3e38, rtol=3e38) == (False, None)
        assert all_right(tensor([0.0, 0.0]), large, atol=3e38, rtol=0.0) == in_chunks(
            tensor([0.0, 0.0]), large, 3e38, 0
        )

    def test_denormal_differences_count(self) -> None:
        got, want = tensor([3e-45, 0.0]), tensor([0.0, 0.0])
        assert all_right(got, want, atol=1.5e-45, rtol=0.0) == (False, None)
        assert all_right(got, want, atol=3e-45, rtol=0.0) == (True, float(got[0]))

    def test_any_dense_layout_that_both_have(self) -> None:
        base = torch.randn(4, 6, 5, generator=seeded(3)).to(DEVICE)
        want = base.permute(2, 0, 1)
        got = want + 0.25
        assert got.stride() == want.stride() and not got.is_contiguous()
        assert all_right(got, want, atol=0.3, rtol=0.0) == in_chunks(got, want, 0.3, 0.0)
        got[4, 3, 5] += 1.0
        assert all_right(got, want, atol=0.3, rtol=0.0) == (False, None)
        one = torch.randn(7, 1, generator=seeded(4)).to(DEVICE)
        assert all_right(one.as_strided((7, 1), (1, 99)), one, atol=0.0, rtol=0.0) == (True, 0.0)
        assert all_right(one[0, 0], one[0, 0], atol=0.0, rtol=0.0) == (True, 0.0)

    def test_everything_else_is_declined(self) -> None:
        x = torch.randn(8, 6, generator=seeded(5)).to(DEVICE)
        for got, want in [
            (x.t().contiguous().t(), x),  # equal values in another order
            (x[:, ::2], x[:, ::2]),
            (x[:1].expand(8, 6), x[:1].expand(8, 6)),
            (x.view(-1)[1:], x.view(-1)[1:]),  # an address that is no multiple of 16
            (x[:0], x[:0]),
            (x.double(), x.double()),
            (x.long(), x.long()),
            (torch._neg_view(x), torch._neg_view(x)),
        ]:
            assert all_right(got, want, atol=1.0, rtol=0.0) == (False, None)
            assert compare.compare([got], [want], task_id="level2/1_Any", atol=1.0, rtol=0.0).ok
        for atol, rtol in ((math.nan, 0.0), (0.0, math.nan), (math.inf, 0.0), (0.0, 1e39)):
            assert all_right(x, x, atol=atol, rtol=rtol) == (False, None)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("numel", SIZES)
    def test_the_largest_finite_magnitude(self, dtype: Any, numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
        values = torch.randn(numel, generator=seeded(6)).mul_(1e-3).to(dtype).to(DEVICE)
        cases = [values.clone() for _ in range(3)]
        cases[0][-1] = -7.0
        cases[1][0] = math.inf
        cases[2][numel // 2] = math.nan
        cases.append(torch.full_like(values, -math.inf))
        found = [compare_kernel.largest_finite(case) for case in cases]
        monkeypatch.setattr(compare_kernel, "_ready", set())
        assert found == [compare._largest_finite(case) for case in cases]
        assert found[0] == 7.0 and found[3] == 0.0

    def test_row_sums_around_the_tolerance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fast_and_slow(values: Any) -> tuple[bool, bool]:
            fast = compare_kernel.rows_sum_to_one(values, 1e-3)
            with monkeypatch.context() as patch:
                patch.setattr(compare_kernel, "_ready", set())
                return fast, compare._normalization_problem(values, SOFTMAX) is None

        good = softmax()
        assert fast_and_slow(good) == (True, True)
        for off in (-9.9e-4, 9.9e-4, -1.01e-3, 1.01e-3, 0.5, -1.0):
            values = good.clone()
            values[1] *= 1.0 + off
            assert fast_and_slow(values) == (abs(off) < 1e-3,) * 2
        for at in ((0, 0), (1, BLOCK - 1), (2, BLOCK), (2, -1)):
            for value in (-1e-9, math.inf, -math.inf):
                values = good.clone()
                values[at] = value
                assert fast_and_slow(values) == (False, False)
        values = good.clone()
        values.view(-1)[good.argmin()] = -0.0
        assert fast_and_slow(values) == (True, True)
        # So close to the tolerance that the order of the additions could decide: left to the comparison in chunks.
        values = torch.zeros_like(good)
        values[:, 5], values[:, -1] = 1.0, 1e-3 - 5e-10
        assert fast_and_slow(values) == (False, True)

    def test_rows_of_other_shapes_are_declined(self) -> None:
        for values in (
            softmax(2, BLOCK - 16),
            softmax(2, BLOCK + 8),
            softmax(BLOCK, 32).t(),
            softmax()[0],
            softmax()[None],
        ):
            assert not compare_kernel.rows_sum_to_one(values, 1e-3)

    @pytest.mark.parametrize("numel", SIZES)
    def test_the_norm_around_the_tolerance(self, numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
        x = torch.randn(numel, generator=seeded(7)).to(DEVICE)
        x /= x.norm()
        cases = [(x * (1.0 + off), abs(off) < 1e-3) for off in (0.0, 9.9e-4, -9.9e-4, 1.01e-3, -1.01e-3, 1.0)]
        for value in (math.nan, math.inf):
            bad = x.clone()
            bad[-1] = value
            cases.append((bad, False))
        assert [compare_kernel.has_norm_one(case, 1e-3) for case, _ in cases] == [good for _, good in cases]
        monkeypatch.setattr(compare_kernel, "_ready", set())
        assert [compare._normalization_problem(case, FROBENIUS) is None for case, _ in cases] == [g for _, g in cases]

    @pytest.mark.parametrize("task_id", [SOFTMAX, FROBENIUS, "level2/1_Any"])
    def test_a_right_output_is_never_cut_into_chunks(self, task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        want = softmax()
        want /= want.norm() if task_id == FROBENIUS else 1.0
        got = want * (1.0 + 1e-4)

        def result() -> Comparison:
            return compare.compare([got], [want], task_id=task_id, atol=1e-2, rtol=1e-2)

        with monkeypatch.context() as patch:
            patch.setattr(compare_kernel, "_ready", set())
            expected = result()
        assert expected.ok and expected.max_abs_error

        def chunks(_: Any) -> Any:
            raise AssertionError("a slow pass")

        monkeypatch.setattr(compare, "chunks", chunks)
        assert result() == expected

    @pytest.mark.parametrize("task_id", [SOFTMAX, FROBENIUS, "level2/1_Any"])
    @pytest.mark.parametrize("factor", [1.005, 1.5, 0.0, -1.0, math.nan])
    def test_what_is_wrong_is_said_in_the_same_words(
        self, task_id: str, factor: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        want = softmax()
        want /= want.norm() if task_id == FROBENIUS else 1.0
        results = []
        for ready in (compare_kernel._ready, set()):
            monkeypatch.setattr(compare_kernel, "_ready", ready)
            results.append(compare.compare([want * factor], [want], task_id=task_id, atol=1e-4, rtol=1e-2))
        assert repr(results[0]) == repr(results[1])  # NaN is not equal to itself
        assert results[0].ok == (factor == 1.005 and task_id == "level2/1_Any")

    def test_a_kernel_that_gives_a_wrong_answer_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, answer in [
            ("all_right", lambda *_, **__: (True, 0.0)),
            ("largest_finite", lambda *_: 0.5),
            ("has_norm_one", lambda *_: True),
            ("rows_sum_to_one", lambda *_: True),
        ]:
            with monkeypatch.context() as patch:
                patch.setattr(compare_kernel, "_ready", set())
                patch.setattr(compare_kernel, name, answer)
                assert not compare_kernel.warm_up(DEVICE) and not compare_kernel._ready


def test_the_check_of_the_rounding_knows_a_fused_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(fused: bool) -> bool:
        def all_right(got: Any, want: Any, *, atol: float, rtol: float) -> tuple[bool, float | None]:
            product = want.abs().double() * rtol  # exact for these values
            tolerance = ((product if fused else product.float().double()) + atol).float()
            right = bool(((got - want).abs() <= tolerance).all())
            return right, 0.0 if right else None

        monkeypatch.setattr(compare_kernel, "all_right", all_right)
        return compare_kernel._check_rounding(torch.device("cpu"))

    assert judged(fused=False) and not judged(fused=True)
