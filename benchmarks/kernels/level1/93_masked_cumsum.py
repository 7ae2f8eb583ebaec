"""Masked cumulative sum along rows in Triton: what the mask leaves out is never loaded, and counts as zero."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def masked_cumsum_kernel(x_ptr, keep_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    lane = tl.arange(0, BLOCK)
    carry = 0.0
    for start in range(0, n, BLOCK):
        offs = start + lane
        keep = tl.load(keep_ptr + row + offs, mask=offs < n, other=0) != 0
        x = tl.load(x_ptr + row + offs, mask=keep & (offs < n), other=0.0)
        tl.store(y_ptr + row + offs, carry + tl.cumsum(x, axis=0), mask=offs < n)
        carry += tl.sum(x, axis=0)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, mask = x.contiguous(), mask.contiguous()
        if x.dim() != 2 or self.dim != 1:
            raise ValueError("this kernel scans the rows of a matrix")
        y = torch.empty_like(x)
        rows, n = x.shape
        masked_cumsum_kernel[(rows,)](x, mask, y, n, BLOCK=4096, num_warps=8)
        return y
