"""Product of two lower triangular matrices in Triton with TF32 tensor cores.

Tiles above the diagonal are zero without any work, and the others only add up the part of the inner dimension in which
both matrices have elements: about a sixth of the full product.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def triangular_matmul_kernel(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    tiles = tl.cdiv(n, BLOCK)
    tile_m = tiles - 1 - tl.program_id(0) // tiles
    tile_n = tl.program_id(0) % tiles
    offs_m = tile_m * BLOCK + tl.arange(0, BLOCK)
    offs_n = tile_n * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    if tile_m >= tile_n:
        first = tile_n * BLOCK
        last = tl.minimum(tile_m * BLOCK + BLOCK, n)
        for start in range(first, last, BLOCK_K):
            offs_k = start + tl.arange(0, BLOCK_K)
            a_offs = offs_m.to(tl.int64)[:, None] * n + offs_k[None, :]
            b_offs = offs_k.to(tl.int64)[:, None] * n + offs_n[None, :]
            a = tl.load(a_ptr + a_offs, mask=(offs_m < n)[:, None] & (offs_k < n)[None, :], other=0.0)
            b = tl.load(b_ptr + b_offs, mask=(offs_k < n)[:, None] & (offs_n < n)[None, :], other=0.0)
            acc = tl.dot(a, b, acc)
    kept = tl.where(offs_m[:, None] >= offs_n[None, :], acc, 0.0)
    c_offs = offs_m.to(tl.int64)[:, None] * n + offs_n[None, :]
    tl.store(c_ptr + c_offs, kept, mask=(offs_m < n)[:, None] & (offs_n < n)[None, :])


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        a, b = A.contiguous(), B.contiguous()
        n = a.shape[0]
        c = torch.empty((n, n), device=a.device, dtype=a.dtype)
        # The last rows come first: their tiles have most to add up.
        grid = (triton.cdiv(n, 128) ** 2,)
        triangular_matmul_kernel[grid](a, b, c, n, BLOCK=128, BLOCK_K=32, num_warps=8, num_stages=4)
        return c
