"""Mean over one dimension: a program owns neighbouring columns and walks down them in wide tiles."""

import math

import torch
import torch.nn as nn
import triton
import triton.language as tl

TILE = 4096


@triton.jit
def mean_kernel(x_ptr, out_ptr, length, inner, BLOCK_L: tl.constexpr, BLOCK_I: tl.constexpr):
    tiles = tl.cdiv(inner, BLOCK_I)
    outer = (tl.program_id(0) // tiles).to(tl.int64)
    column = (tl.program_id(0) % tiles) * BLOCK_I + tl.arange(0, BLOCK_I)
    row = tl.arange(0, BLOCK_L)
    x_ptrs = x_ptr + outer * length * inner + row[:, None] * inner + column[None, :]
    total = tl.zeros((BLOCK_L, BLOCK_I), dtype=tl.float32)
    for start in range(0, length, BLOCK_L):
        inside = (start + row[:, None] < length) & (column[None, :] < inner)
        total += tl.load(x_ptrs, mask=inside, other=0.0)
        x_ptrs += BLOCK_L * inner
    tl.store(out_ptr + outer * inner + column, tl.sum(total, axis=0) / length, mask=column < inner)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dim = self.dim % x.dim()
        outer, length, inner = math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])
        out = torch.empty((outer, inner), dtype=x.dtype, device=x.device)
        block_i = min(128, triton.next_power_of_2(inner))
        grid = (outer * triton.cdiv(inner, block_i),)
        mean_kernel[grid](x, out, length, inner, BLOCK_L=TILE // block_i, BLOCK_I=block_i, num_warps=8)
        return out.view(*x.shape[:dim], *x.shape[dim + 1 :])
