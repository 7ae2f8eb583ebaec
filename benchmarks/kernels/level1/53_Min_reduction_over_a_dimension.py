"""Minimum over the middle dimension in Triton: each program takes a strip of columns."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def column_min_kernel(x_ptr, y_ptr, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_R)
    base = x_ptr + batch * rows * cols
    in_cols = col < cols
    best = tl.full([BLOCK_R, BLOCK_C], float("inf"), tl.float32)
    for start in range(0, rows, BLOCK_R):
        row = start + lane
        mask = (row < rows)[:, None] & in_cols[None, :]
        x = tl.load(base + row[:, None] * cols + col[None, :], mask=mask, other=float("inf"))
        best = tl.minimum(best, x)
    tl.store(y_ptr + batch * cols + col, tl.min(best, axis=0), mask=col < cols)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        if x.dim() != 3 or self.dim != 1:
            raise ValueError("this kernel minimizes a 3-dimensional tensor over dimension 1")
        batch, rows, cols = x.shape
        y = torch.empty((batch, cols), device=x.device, dtype=x.dtype)
        block_c = 128
        grid = (triton.cdiv(cols, block_c), batch)
        column_min_kernel[grid](x, y, rows, cols, BLOCK_R=32, BLOCK_C=block_c, num_warps=4)
        return y
