"""The sum over a linear layer's outputs in Triton, without the product: it is each row times the sum of the weights.

The columns of the weights are added up in parts, then the parts in a fixed order; a last kernel takes the rows.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial_sums_kernel(w_ptr, partial_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * ROWS
    acc = tl.zeros([BLOCK], tl.float32)
    for row in range(first, tl.minimum(first + ROWS, rows)):
        acc += tl.load(w_ptr + tl.cast(row, tl.int64) * cols + col, mask=col < cols, other=0.0)
    tl.store(partial_ptr + tl.program_id(1) * cols + col, acc, mask=col < cols)


@triton.jit
def add_parts_kernel(partial_ptr, total_ptr, parts, cols, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for part in range(0, parts):
        acc += tl.load(partial_ptr + part * cols + col, mask=col < cols, other=0.0)
    tl.store(total_ptr + col, acc, mask=col < cols)


@triton.jit
def row_kernel(x_ptr, total_ptr, y_ptr, cols, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + tl.cast(row, tl.int64) * cols + col, mask=col < cols, other=0.0)
        acc += x * tl.load(total_ptr + col, mask=col < cols, other=0.0)
    tl.store(y_ptr + row, tl.sum(acc, axis=0) * scale)


class ModelNew(nn.Module):
    def __init__(self, input_size: int, hidden_size: int, scaling_factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = x.contiguous(), self.weight
        batch, cols = x.shape
        rows = weight.shape[0]
        per_part, block = 64, 256
        parts = triton.cdiv(rows, per_part)
        partial = torch.empty((parts, cols), device=x.device, dtype=x.dtype)
        total = torch.empty(cols, device=x.device, dtype=x.dtype)
        y = torch.empty((batch, 1), device=x.device, dtype=x.dtype)
        strips = triton.cdiv(cols, block)
        partial_sums_kernel[(strips, parts)](weight, partial, rows, cols, ROWS=per_part, BLOCK=block)
        add_parts_kernel[(strips,)](partial, total, parts, cols, BLOCK=block)
        row_kernel[(batch,)](x, total, y, cols, 0.5 * self.scaling_factor, BLOCK=1024)
        return y
