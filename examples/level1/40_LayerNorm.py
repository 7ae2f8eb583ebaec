"""Layer normalisation of long rows: several programs a row sum it, then several normalise it.

The sums are of x minus the row's first element, so that a mean far from zero does not eat the variance's digits.
"""

import math

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK = 2048
MAX_SPLITS = 64


@triton.jit
def row_sums_kernel(x_ptr, sum_ptr, square_ptr, length, splits, BLOCK: tl.constexpr):
    split = tl.program_id(0) % splits
    row = tl.program_id(0) // splits
    row_ptr = x_ptr + row.to(tl.int64) * length
    pivot = tl.load(row_ptr)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(split * BLOCK, length, splits * BLOCK):
        column = start + tl.arange(0, BLOCK)
        shifted = tl.load(row_ptr + column, mask=column < length, other=pivot) - pivot
        total += shifted
        squares += shifted * shifted
    tl.store(sum_ptr + row * splits + split, tl.sum(total, axis=0))
    tl.store(square_ptr + row * splits + split, tl.sum(squares, axis=0))


@triton.jit
def normalize_kernel(
    x_ptr, weight_ptr, bias_ptr, sum_ptr, square_ptr, out_ptr, length, splits, eps,
    BLOCK_SPLITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(length, BLOCK)
    row = tl.program_id(0) // tiles
    column = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = column < length
    offset = row.to(tl.int64) * length
    split = tl.arange(0, BLOCK_SPLITS)
    shift = tl.sum(tl.load(sum_ptr + row * splits + split, mask=split < splits, other=0.0), axis=0) / length
    square = tl.sum(tl.load(square_ptr + row * splits + split, mask=split < splits, other=0.0), axis=0) / length
    pivot = tl.load(x_ptr + offset)
    inverse = 1.0 / tl.sqrt(tl.maximum(square - shift * shift, 0.0) + eps)
    x = tl.load(x_ptr + offset + column, mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside)
    bias = tl.load(bias_ptr + column, mask=inside)
    tl.store(out_ptr + offset + column, (x - pivot - shift) * inverse * weight + bias, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)  # holds the parameters; forward is the kernels'

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        length = math.prod(self.ln.normalized_shape)
        rows = x.numel() // length
        blocks = triton.cdiv(length, BLOCK)
        splits = min(MAX_SPLITS, blocks)
        sums = torch.empty((2, rows, splits), dtype=torch.float32, device=x.device)
        out = torch.empty_like(x)
        row_sums_kernel[(rows * splits,)](x, sums[0], sums[1], length, splits, BLOCK=BLOCK, num_warps=8)
        normalize_kernel[(rows * blocks,)](
            x, self.ln.weight, self.ln.bias, sums[0], sums[1], out, length, splits, self.ln.eps,
            BLOCK_SPLITS=triton.next_power_of_2(splits), BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
        return out
