"""Cumulative product along rows in Triton: one program a row scans it block by block and carries the product on."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cumprod_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    lane = tl.arange(0, BLOCK)
    carry = 1.0
    for start in range(0, n, BLOCK):
        offs = start + lane
        x = tl.load(x_ptr + row + offs, mask=offs < n, other=1.0)
        y = carry * tl.cumprod(x, axis=0)
        tl.store(y_ptr + row + offs, y, mask=offs < n)
        carry = tl.sum(tl.where(lane == BLOCK - 1, y, 0.0), axis=0)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        if x.dim() != 2 or self.dim != 1:
            raise ValueError("this kernel scans the rows of a matrix")
        y = torch.empty_like(x)
        rows, n = x.shape
        cumprod_kernel[(rows,)](x, y, n, BLOCK=4096, num_warps=8)
        return y
