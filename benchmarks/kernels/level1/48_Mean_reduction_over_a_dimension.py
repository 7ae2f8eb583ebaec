"""Mean over the middle dimension in Triton: each program averages a strip of columns."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def column_mean_kernel(x_ptr, y_ptr, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_R)
    base = x_ptr + batch * rows * cols
    acc = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    last = rows
    for start in range(0, last, BLOCK_R):
        row = start + lane
        mask = (row < last)[:, None] & (col < cols)[None, :]
        acc += tl.load(base + row[:, None] * cols + col[None, :], mask=mask, other=0.0)
    tl.store(y_ptr + batch * cols + col, tl.sum(acc, axis=0) / rows, mask=col < cols)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        if x.dim() != 3 or self.dim != 1:
            raise ValueError("this kernel averages a 3-dimensional tensor over dimension 1")
        batch, rows, cols = x.shape
        y = torch.empty((batch, cols), device=x.device, dtype=x.dtype)
        block_c = 128
        grid = (triton.cdiv(cols, block_c), batch)
        column_mean_kernel[grid](x, y, rows, cols, BLOCK_R=32, BLOCK_C=block_c, num_warps=4)
        return y
