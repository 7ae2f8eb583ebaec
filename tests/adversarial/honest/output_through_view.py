"""Running sum; the kernel writes through out.view(...), and forward returns the original tensor."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cumsum_kernel(x_ptr, y_ptr, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for start in range(0, length, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * length + offs, mask=offs < length, other=0.0)
        tl.store(y_ptr + row * length + offs, tl.cumsum(x, axis=0) + carry, mask=offs < length)
        carry += tl.sum(x, axis=0)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.empty_like(x)
        length = x.shape[self.dim]
        cumsum_kernel[(x.numel() // length,)](x.view(-1, length), out.view(-1, length), length, BLOCK=1024)
        return out
