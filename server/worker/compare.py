"""Compares a candidate's outputs with the reference's, element by element, and says in a sentence what is wrong.

Runs in the judge, on tensors the judge owns. Pure: changes none of the tensors it is given. What compare_kernel.py
cannot find right in one pass is worked out here, in chunks, so that two outputs of 1.6e9 elements need little memory
beside themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from server.worker import tree
from server.worker.tree import Spec, chunks, dtype_name, scalars

try:  # torch works without triton on the CPU
    from server.worker import compare_kernel
except ModuleNotFoundError:
    compare_kernel = None

FailedOutcome = Literal[
    "wrong_structure", "wrong_shape", "wrong_dtype", "nonfinite", "wrong_values", "not_normalized"
]  # values of kernel_env.models.Outcome

_SOFTMAX = "level1/23_Softmax"
_FROBENIUS = "level1/37_FrobeniusNorm_"
_SCALED_ATOL = 1e-5  # of max|expected|: the specification's absolute tolerance for the two tasks above
_NORMALIZATION_TOLERANCE = 1e-3  # rounding in fp32 stays below 1e-5; 1e-3 leaves room for approximate exponentials
_ARG_EXTREMUM = re.compile(r"level\d+/\d+_arg(max|min)(_|$)", re.IGNORECASE)


class ReferenceUnusable(Exception):
    """The reference's own output cannot serve as the expected one; the trial says nothing about the candidate."""


class ReferenceNonfinite(ReferenceUnusable):
    """The reference's own output has a NaN."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing all outputs. When `ok`, only `max_abs_error` is set.

    Attributes:
        max_abs_error: the largest |actual - expected| over the elements where both are finite; None where none is.
        output: which output is wrong, counted over the tensors (or scalars) in order.
        index: of the worst element: the first nonfinite one, else the one that is furthest off.
        wrong_count, numel: how many of its elements are wrong, and how many it has.
        detail: the sentence where the other fields do not say it all.
    """

    ok: bool
    outcome: FailedOutcome | None = None
    max_abs_error: float | None = None
    output: int = 0
    index: tuple[int, ...] | None = None
    actual: float | int | bool | None = None
    expected: float | int | bool | None = None
    wrong_count: int = 0
    numel: int = 0
    tolerance: str = ""
    detail: str = ""

    @property
    def wrong_fraction(self) -> float:
        return self.wrong_count / self.numel if self.numel else 0.0

    def sentence(self, paths: Sequence[str] | None = None) -> str:
        """What is wrong, for the model to act on; "" when nothing is.

        Args:
            paths: `tree.tensor_paths` of the outputs; without them an output is called "output" and its number.
        """
        if self.ok:
            return ""
        name = paths[self.output] if paths else f"output {self.output}"
        if self.detail:
            return f"{name}: {self.detail}"
        what = "are NaN or infinite where the reference is finite" if self.outcome == "nonfinite" else "are wrong"
        text = (
            f"{name}: {self.wrong_count} of {self.numel} elements ({100 * self.wrong_fraction:.3g}%) {what}"
            f"{f' ({self.tolerance})' if self.tolerance else ''}. "
        )
        which = "First" if self.outcome == "nonfinite" else "Worst"
        text += f"{which} at index {list(self.index or ())}: expected {_show(self.expected)}, got {_show(self.actual)}."
        if self.max_abs_error is not None:
            text += f" Largest absolute error: {self.max_abs_error:.3g}."
        return text


@torch.no_grad()
def compare(
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    *,
    task_id: str,
    atol: float,
    rtol: float,
    inputs: Sequence[Any] = (),
    tight: Sequence[float | None] = (),
) -> Comparison:
    """Compare all outputs; the first that is wrong decides.

    Shape and dtype must be the reference's. A floating-point element is right when |actual - expected| <=
    atol + rtol * |expected|, computed in float32 (float64 for float64), so NaN and overflow never pass; where the
    reference is infinite, the same infinity is required. Integers and bools must be equal, except that argmax and
    argmin tasks accept every index that attains the extremum. For level1/23_Softmax and level1/37_FrobeniusNorm_ the
    absolute tolerance is min(atol, max|expected| * 1e-5), and the output must be normalized.

    Args:
        actual, expected: the tensors in order, on one device.
        inputs: the inputs of this trial as the reference saw them; argmax and argmin tasks need them.
        tight: for each output an absolute tolerance that must hold besides, or None. Empty for none.

    Raises:
        ReferenceNonfinite: an expected output has a NaN.
        ReferenceUnusable: the reference's own output fails the normalization check.
    """
    if len(actual) != len(expected):
        return Comparison(False, "wrong_structure", detail=f"{len(actual)} tensors, and the reference {len(expected)}")
    largest: float | None = None
    for number, (got, want) in enumerate(zip(actual, expected, strict=True)):
        if got.shape != want.shape:
            detail = f"the shape is {list(got.shape)}, and the reference's is {list(want.shape)}."
            return Comparison(False, "wrong_shape", output=number, detail=detail)
        if got.dtype != want.dtype:
            detail = f"the dtype is {dtype_name(got.dtype)}, and the reference's is {dtype_name(want.dtype)}."
            return Comparison(False, "wrong_dtype", output=number, detail=detail)
        if want.is_floating_point():
            result = _compare_floats(got, want, number, task_id, atol, rtol)
            absolute = tight[number] if number < len(tight) else None
            if result.ok and absolute is not None:
                result = _compare_floats(got, want, number, task_id, absolute, 0.0)
        else:
            result = _compare_integers(got, want, number, task_id, inputs)
        if not result.ok:
            return result
        if result.max_abs_error is not None:
            largest = max(largest or 0.0, result.max_abs_error)
    return Comparison(True, max_abs_error=largest)


def compare_scalars(actual: Spec, expected: Spec, *, atol: float, rtol: float) -> Comparison:
    """Compare the non-tensor values of two specs that `tree.same_structure` found the same.

    Floats within the tolerance (a candidate's int will do for a float), everything else equal and of equal type.

    Raises:
        ReferenceNonfinite: an expected scalar is NaN.
    """
    for number, ((path, want), (_, got)) in enumerate(zip(scalars(expected), scalars(actual), strict=True)):
        if type(want) is float:
            if math.isnan(want):
                raise ReferenceNonfinite(f"the reference returns NaN as {path}")
            if type(got) in (int, float):
                assert isinstance(got, int | float)
                if got == want or (math.isfinite(want) and abs(got - want) <= atol + rtol * abs(want)):
                    continue
                if not math.isfinite(got) and math.isfinite(want):
                    detail = f"the value is {got}, and the reference's is {want:.6g}."
                    return Comparison(False, "nonfinite", output=number, detail=f"at {path} {detail}")
        elif type(got) is type(want) and got == want:
            continue
        detail = f"at {path} the value is {_show(got)}, and the reference's is {_show(want)}."
        return Comparison(False, "wrong_values", output=number, detail=detail)
    return Comparison(True)


def _compare_floats(
    got: torch.Tensor, want: torch.Tensor, number: int, task_id: str, atol: float, rtol: float
) -> Comparison:
    normalized = task_id in (_SOFTMAX, _FROBENIUS)
    if normalized:
        atol = min(atol, _largest_finite(want) * _SCALED_ATOL)
    right, largest = compare_kernel.all_right(got, want, atol=atol, rtol=rtol) if compare_kernel else (False, None)
    if right:
        result = Comparison(True, max_abs_error=largest)
    else:
        result = _compare_in_chunks(got, want, number, atol, rtol)
    if result.ok and normalized:
        problem = _normalization_problem(got, task_id)
        if problem is not None:
            if _normalization_problem(want, task_id) is not None:
                raise ReferenceUnusable("the reference's own output is not normalized")
            return Comparison(False, "not_normalized", result.max_abs_error, number, numel=got.numel(), detail=problem)
    return result


def _compare_in_chunks(got: torch.Tensor, want: torch.Tensor, number: int, atol: float, rtol: float) -> Comparison:
    work = torch.float64 if want.dtype == torch.float64 else torch.float32
    wrong_count = nonfinite_count = 0
    largest: float | None = None
    worst: tuple[float, int] | None = None
    first_nonfinite: int | None = None
    for (offset, got_piece), (_, want_piece) in zip(chunks(got), chunks(want), strict=True):
        a, e = got_piece.to(work), want_piece.to(work)
        a_finite, e_finite = a.isfinite(), e.isfinite()
        error = (a - e).abs_()
        # d <= tol is false for NaN; a difference that overflows is wrong even if the tolerance overflows too.
        right = (error <= e.abs().mul_(rtol).add_(atol)) & error.isfinite()
        if not bool(e_finite.all()):
            if bool(e.isnan().any()):
                raise ReferenceNonfinite("the reference's output has NaN values")
            right = torch.where(e_finite, right, a == e)
        both = a_finite & e_finite
        if bool(both.any()):
            # An overflowed difference is reported as the largest float: infinities do not travel as JSON.
            here = min(float(error.where(both, -1.0).max()), torch.finfo(work).max)
            largest = max(largest or 0.0, here)
        wrong_here = right.numel() - int(right.sum())
        if not wrong_here:
            continue
        wrong_count += wrong_here
        nonfinite = e_finite & ~a_finite
        nonfinite_here = int(nonfinite.sum())
        if nonfinite_here and first_nonfinite is None:
            first_nonfinite = offset + int(nonfinite.to(torch.uint8).argmax())
        nonfinite_count += nonfinite_here
        # Rank by the error; a finite value where the reference is infinite ranks first.
        ranked = error.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(right, -1.0)
        score, position = ranked.max(dim=0)
        if worst is None or float(score) > worst[0]:
            worst = (float(score), offset + int(position))
    if wrong_count:
        assert worst is not None
        outcome: FailedOutcome = "wrong_values" if first_nonfinite is None else "nonfinite"
        position = worst[1] if first_nonfinite is None else first_nonfinite
        count = wrong_count if first_nonfinite is None else nonfinite_count
        tolerance = f"tolerance {atol:.3g} + {rtol:.3g} * |expected|" if first_nonfinite is None else ""
        return _wrong(outcome, got, want, number, position, count, largest, tolerance)
    return Comparison(True, max_abs_error=largest)


def _compare_integers(
    got: torch.Tensor, want: torch.Tensor, number: int, task_id: str, inputs: Sequence[Any]
) -> Comparison:
    wrong_count = 0
    largest: float | None = None
    worst: tuple[float, int] | None = None
    same_extremum = _same_extremum(got, want, task_id, inputs)
    pieces = zip(chunks(got), chunks(want), chunks(same_extremum), strict=True)
    for (offset, got_piece), (_, want_piece), (_, excused) in pieces:
        wrong = (got_piece != want_piece) & ~excused
        error = (got_piece.double() - want_piece.double()).abs_().masked_fill_(excused, 0.0)
        largest = max(largest or 0.0, float(error.max()))
        wrong_here = int(wrong.sum())
        if wrong_here:
            wrong_count += wrong_here
            score, position = error.masked_fill_(~wrong, -1.0).max(dim=0)
            if worst is None or float(score) > worst[0]:
                worst = (float(score), offset + int(position))
    if worst is not None:
        return _wrong("wrong_values", got, want, number, worst[1], wrong_count, largest, "integers and bools are exact")
    return Comparison(True, max_abs_error=largest)


def _same_extremum(got: torch.Tensor, want: torch.Tensor, task_id: str, inputs: Sequence[Any]) -> torch.Tensor:
    """Where `got` is another index of the same extremum than `want`; all False for tasks that are not argmax or argmin.

    The reference's index attains the extremum, so another index does where the input has the same value there.
    """
    none = torch.zeros((), dtype=torch.bool, device=want.device).expand(want.shape)
    match = _ARG_EXTREMUM.match(task_id)
    if match is None or want.dtype == torch.bool or not want.numel():
        return none
    sources = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point() and x.device == want.device]
    for x in sources[:1]:
        dims = [d for d in range(x.dim()) if want.shape in (_without(x, d, ()), _without(x, d, (1,)))]
        for dim in dims:
            shape = _without(x, dim, (1,))
            index, reference = got.reshape(shape).long(), want.reshape(shape).long()
            if bool(((reference < 0) | (reference >= x.shape[dim])).any()):
                continue
            extremum = x.gather(dim, reference)
            if len(dims) > 1:  # the shapes leave the dimension open: it is one along which the reference is right
                best = x.amax(dim, keepdim=True) if match[1].lower() == "max" else x.amin(dim, keepdim=True)
                if not bool((extremum == best).all()):
                    continue
            inside = (index >= 0) & (index < x.shape[dim])
            reached = x.gather(dim, index.clamp(0, x.shape[dim] - 1))
            return (inside & (reached == extremum)).reshape(want.shape)
    return none


def _without(x: torch.Tensor, dim: int, replacement: tuple[int, ...]) -> torch.Size:
    return torch.Size((*x.shape[:dim], *replacement, *x.shape[dim + 1 :]))


def _normalization_problem(out: torch.Tensor, task_id: str) -> str | None:
    """What is wrong with a Softmax or Frobenius output that is finite, or None. Sums are made in float64."""
    # A single value near 1 in a 16-bit type is off by up to half an epsilon whatever the kernel does.
    tolerance = max(_NORMALIZATION_TOLERANCE, torch.finfo(out.dtype).eps)
    if task_id == _FROBENIUS:
        if compare_kernel and compare_kernel.has_norm_one(out, tolerance):
            return None
        norm = math.sqrt(sum(float(piece.double().square_().sum()) for _, piece in chunks(out)))
        if abs(norm - 1.0) <= tolerance:
            return None
        return f"the L2 norm of the whole output must be 1, and is {norm:.6g}. Divide by the norm over all elements."
    if compare_kernel and compare_kernel.rows_sum_to_one(out, tolerance):
        return None
    last = out.movedim(1 if out.dim() > 1 else 0, -1)
    rows = last.reshape(-1, last.shape[-1])  # a view of the two-dimensional output that the task has
    step = max(1, tree.CHUNK_ELEMENTS // max(1, rows.shape[1]))
    for row in range(0, rows.shape[0], step):
        part = rows[row : row + step]
        lowest = min(float(piece.min()) for _, piece in chunks(part))
        if lowest < 0.0:
            return f"a softmax has no negative values, and the lowest here is {lowest:.6g}."
        if len(part) > 1:
            sums = part.sum(dim=1, dtype=torch.float64)
        else:
            sums = torch.stack([piece.sum(dtype=torch.float64) for _, piece in chunks(part)]).sum().reshape(1)
        off, position = (sums - 1.0).abs().max(dim=0)
        if not float(off) <= tolerance:
            at = row + int(position)
            return f"each row of a softmax sums to 1, and row {at} sums to {float(sums[int(position)]):.6g}."
    return None


def _largest_finite(want: torch.Tensor) -> float:
    known = compare_kernel.largest_finite(want) if compare_kernel else None
    if known is not None:
        return known
    work = torch.float64 if want.dtype == torch.float64 else torch.float32
    largest = 0.0
    for _, piece in chunks(want):
        values = piece.to(work).abs()
        largest = max(largest, float(values.where(values.isfinite(), 0.0).max()))
    return largest


def _wrong(
    outcome: FailedOutcome,
    got: torch.Tensor,
    want: torch.Tensor,
    number: int,
    position: int,
    count: int,
    largest: float | None,
    tolerance: str,
) -> Comparison:
    index: list[int] = []
    rest = position
    for size in reversed(want.shape):
        rest, here = divmod(rest, size)
        index.append(here)
    at = tuple(reversed(index))
    return Comparison(
        ok=False,
        outcome=outcome,
        max_abs_error=largest,
        output=number,
        index=at,
        actual=got[at].item(),
        expected=want[at].item(),
        wrong_count=count,
        numel=want.numel(),
        tolerance=tolerance,
    )


def _show(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)[:80]
