"""Running sum: a program walks along one row in blocks, scans each and carries the sum so far."""

import math

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def cumsum_kernel(x_ptr, out_ptr, length, inner, BLOCK: tl.constexpr):
    outer = (tl.program_id(0) // inner).to(tl.int64)
    base = outer * length * inner + tl.program_id(0) % inner
    carry = 0.0
    for start in range(0, length, BLOCK):
        index = start + tl.arange(0, BLOCK)
        offset = base + index * inner
        x = tl.load(x_ptr + offset, mask=index < length, other=0.0)
        tl.store(out_ptr + offset, carry + tl.cumsum(x, axis=0), mask=index < length)
        carry += tl.sum(x, axis=0)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dim = self.dim % x.dim()
        outer, length, inner = math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])
        out = torch.empty_like(x)
        block = min(BLOCK, triton.next_power_of_2(length))
        cumsum_kernel[(outer * inner,)](x, out, length, inner, BLOCK=block, num_warps=8)
        return out
