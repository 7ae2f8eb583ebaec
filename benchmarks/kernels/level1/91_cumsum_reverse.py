"""Cumulative sum from the end of each row in Triton: the blocks and the lanes are scanned backwards."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def reverse_cumsum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    lane = tl.arange(0, BLOCK)
    carry = 0.0
    blocks = tl.cdiv(n, BLOCK)
    for i in range(0, blocks):
        offs = (blocks - 1 - i) * BLOCK + lane
        x = tl.load(x_ptr + row + offs, mask=offs < n, other=0.0)
        tl.store(y_ptr + row + offs, carry + tl.cumsum(x, axis=0, reverse=True), mask=offs < n)
        carry += tl.sum(x, axis=0)


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
        reverse_cumsum_kernel[(rows,)](x, y, n, BLOCK=4096, num_warps=8)
        return y
