"""A matrix times a number in Triton: one read and one write."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_kernel(a_ptr, c_ptr, s, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(a_ptr + offs, mask=mask)
    tl.store(c_ptr + offs, a * s, mask=mask)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, s: float) -> torch.Tensor:
        a = A.contiguous()
        c = torch.empty_like(a)
        n = a.numel()
        block = 8192
        scale_kernel[(triton.cdiv(n, block),)](a, c, s, n, BLOCK=block, num_warps=8)
        return c
