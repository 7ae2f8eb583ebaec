"""One pass over an output instead of the fifteen of compare.py, which decides in one case only: that all is right.

Runs in the judge, on tensors the judge owns, and changes none of them. Every function here may decline; compare.py then
works it out itself, and words what is wrong. A result from here is the one that compare.py would have come to. Nothing
is taken on a device before `warm_up` has compiled the kernels there, so no evaluation pays for a compiler, and what a
candidate could do to a compiler's cache comes too late.

Touches torch and triton only; triton itself writes to its cache (TRITON_CACHE_DIR) in `warm_up`.
"""

# pyright: reportInvalidTypeForm=false
# (Triton's argument types are values.)

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from server.worker.layout import is_dense

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = 4096  # elements of one program
COLUMN_GROUP = 16  # a row's length must be a multiple: its rows are then aligned for vector loads
_ALIGNMENT = 16  # bytes; Triton compiles another variant for other addresses

# Rounds as torch does, product and sum each by itself: a fused multiply-add would move the tolerance by a rounding.
_LAUNCH: dict[str, Any] = {"BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": False}
_ROWS_LAUNCH: dict[str, Any] = _LAUNCH | {"GROUP": COLUMN_GROUP}
# Sums are made in another order than compare.py's, which moves them by far less than this part of the tolerance.
_DECLINED = 1e-6

_ready: set[torch.device] = set()


@triton.jit
def _load(pointer, start, end, BLOCK: tl.constexpr, BEYOND: tl.constexpr):
    """BLOCK elements from `start` on; BEYOND for those at `end` and after it.

    The size is unknown to the compiler, so that one variant serves all, and a mask by it would forbid vector loads.
    """
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= end:
        values = tl.load(pointer + offsets)
    else:
        values = tl.load(pointer + offsets, mask=offsets < end, other=BEYOND)
    return values


@triton.jit(do_not_specialize=["numel"])
def _error_kernel(got, want, errors, numel: tl.int64, atol: tl.float32, rtol: tl.float32, BLOCK: tl.constexpr):
    """For each block the largest finite error; -1 where no pair is finite, infinity where an element is wrong."""
    program = tl.program_id(0).to(tl.int64)
    # Elements beyond the end are equal infinities: right, and without an error.
    a = _load(got, program * BLOCK, numel, BLOCK, float("inf")).to(tl.float32)
    e = _load(want, program * BLOCK, numel, BLOCK, float("inf")).to(tl.float32)
    error = tl.abs(a - e)
    size = tl.abs(e)
    finite = size < float("inf")
    right = tl.where(finite, (error <= size * rtol + atol) & (error < float("inf")), a == e)
    tl.store(errors + program, tl.max(tl.where(right, tl.where(finite, error, -1.0), float("inf")), 0))


@triton.jit(do_not_specialize=["numel"])
def _largest_kernel(values, largest, numel: tl.int64, BLOCK: tl.constexpr):
    """For each block the largest finite magnitude, 0 where there is none."""
    program = tl.program_id(0).to(tl.int64)
    size = tl.abs(_load(values, program * BLOCK, numel, BLOCK, 0.0).to(tl.float32))
    tl.store(largest + program, tl.max(tl.where(size < float("inf"), size, 0.0), 0))


@triton.jit(do_not_specialize=["numel"])
def _squares_kernel(values, sums, numel: tl.int64, BLOCK: tl.constexpr):
    """For each block the sum of squares, in float64."""
    program = tl.program_id(0).to(tl.int64)
    x = _load(values, program * BLOCK, numel, BLOCK, 0.0).to(tl.float64)
    tl.store(sums + program, tl.sum(x * x, 0))


@triton.jit(do_not_specialize=["groups"])
def _rows_kernel(values, sums, groups: tl.int64, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """For each block of each row of `groups` * GROUP elements its sum in float64; NaN where a value is negative."""
    program = tl.program_id(0).to(tl.int64)
    columns = groups * GROUP
    blocks = (columns + BLOCK - 1) // BLOCK
    column = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(values + (program // blocks) * columns + column, mask=column < columns, other=0.0)
    tl.store(sums + program, tl.sum(tl.where(x < 0.0, float("nan"), x.to(tl.float64)), 0))


def all_right(got: torch.Tensor, want: torch.Tensor, *, atol: float, rtol: float) -> tuple[bool, float | None]:
    """Whether every element of `got` is right, and then the largest error where both are finite (None: nowhere).

    Both have one shape and dtype. (False, None) says only that this function does not know.
    """
    largest_tolerance = torch.finfo(torch.float32).max  # torch refuses to work with one beyond it
    if not (_takes(got, want) and abs(atol) <= largest_tolerance and abs(rtol) <= largest_tolerance):
        return False, None
    errors = _partial(got, torch.float32)
    _error_kernel[(errors.numel(),)](got, want, errors, got.numel(), atol, rtol, **_LAUNCH)
    largest = float(errors.max())
    if largest == math.inf:
        return False, None
    return True, largest if largest >= 0.0 else None


def largest_finite(values: torch.Tensor) -> float | None:
    """The largest finite magnitude, 0 where nothing is finite; None when this function does not know."""
    if not _takes(values):
        return None
    largest = _partial(values, torch.float32)
    _largest_kernel[(largest.numel(),)](values, largest, values.numel(), **_LAUNCH)
    return float(largest.max())


def has_norm_one(values: torch.Tensor, tolerance: float) -> bool:
    """Whether the L2 norm of all elements is surely within `tolerance` of 1. False says only that it may not be."""
    if not _takes(values):
        return False
    sums = _partial(values, torch.float64)
    _squares_kernel[(sums.numel(),)](values, sums, values.numel(), **_LAUNCH)
    return abs(math.sqrt(float(sums.sum())) - 1.0) <= tolerance * (1.0 - _DECLINED)


def rows_sum_to_one(values: torch.Tensor, tolerance: float) -> bool:
    """Whether a matrix surely has no negative element, and row sums within `tolerance` of 1.

    False says only that it may not be so.
    """
    if values.dim() != 2 or not values.is_contiguous() or not _takes(values):
        return False
    rows, columns = values.shape
    # A program works on one row: short rows would make many programs that do little.
    if columns < BLOCK or columns % COLUMN_GROUP:
        return False
    blocks = -(-columns // BLOCK)
    sums = torch.empty(rows, blocks, dtype=torch.float64, device=values.device)
    groups = columns // COLUMN_GROUP
    _rows_kernel[(sums.numel(),)](values, sums, groups, **_ROWS_LAUNCH)
    off = float(sums.sum(dim=1).sub_(1.0).abs_().max())
    return off <= tolerance * (1.0 - _DECLINED)


def warm_up(device: torch.device) -> bool:
    """Compile all kernels for `device`, the current one, and take what they can answer from then on.

    Returns False, and leaves everything to compare.py, where Triton cannot compile or a kernel gives a wrong answer.
    """
    device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as tensors say it
    _ready.add(device)
    try:
        works = _check_errors(device) and _check_rounding(device) and _check_normalized(device)
    except Exception:
        works = False
    if not works:
        _ready.discard(device)
    return works


def _takes(*tensors: torch.Tensor) -> bool:
    """Whether the tensors, of one shape, can be read as flat memory in which equal offsets are equal indices."""
    first = tensors[0]
    if first.dtype not in DTYPES or first.layout is not torch.strided or not first.numel():
        return False
    if not is_dense(first.shape, first.stride()):
        return False
    strides = _real_strides(first)
    return all(
        tensor.device in _ready
        and not tensor.is_neg()
        and tensor.data_ptr() % _ALIGNMENT == 0
        and _real_strides(tensor) == strides
        for tensor in tensors
    )


def _real_strides(tensor: torch.Tensor) -> list[int]:
    return [stride for stride, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent != 1]


def _partial(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One result for each block, which the kernel writes."""
    return torch.empty(-(-values.numel() // BLOCK), dtype=dtype, device=values.device)


def _check_errors(device: torch.device) -> bool:
    for dtype in DTYPES:
        # Two blocks, the second one not full.
        want = torch.linspace(-2.0, 2.0, BLOCK + 5, device=device).to(dtype)
        want[0], want[1] = math.inf, -math.inf
        got = want.clone()
        got[2:] += 0.25
        error = float((got[2:].float() - want[2:].float()).abs().max())
        if all_right(got, want, atol=error, rtol=0.0) != (True, error):
            return False
        if all_right(got, want, atol=0.2, rtol=0.0)[0]:
            return False
        for value in (math.nan, math.inf):
            got[-1] = value
            if all_right(got, want, atol=1e30, rtol=0.0)[0]:
                return False
    return True


def _check_rounding(device: torch.device) -> bool:
    """`factor` squared rounds up in float32: less the rounded square it is 0, and negative by a fused multiply-add."""
    factor = 1.0 + 5.0 * 2.0**-14
    values = torch.full((BLOCK,), factor, device=device)
    return all_right(values, values, atol=-float((values * factor)[0]), rtol=factor) == (True, 0.0)


def _check_normalized(device: torch.device) -> bool:
    for dtype in DTYPES:
        values = torch.zeros(2, BLOCK + COLUMN_GROUP, dtype=dtype, device=device)
        values[:, -1] = 1.0
        if not rows_sum_to_one(values, 1e-3) or has_norm_one(values, 1e-3) or largest_finite(values) != 1.0:
            return False
        values[0, -1] = -1.0
        if rows_sum_to_one(values, 3.0) or not has_norm_one(values.mul_(math.sqrt(0.5)), 1e-3):
            return False
    return True
