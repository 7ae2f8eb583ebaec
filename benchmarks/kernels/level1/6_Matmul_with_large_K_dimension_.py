"""Matrix product with a long inner dimension in Triton, which many programs share; three TF32 products for each
one: a single one is off by more than the tolerance where half a million terms nearly cancel.

Each program adds up a part of the inner dimension for one tile, and a second kernel adds the parts in a fixed order.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial_kernel(
    a_ptr, b_ptr, partial_ptr, m, n, k, per_part, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    tiles_n = tl.cdiv(n, BLOCK_N)
    offs_m = (tl.program_id(0) // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(1).to(tl.int64)
    first = tl.program_id(1) * per_part
    last = tl.minimum(first + per_part, k)
    offs_k = first + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * k + offs_k[None, :]
    b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * n + offs_n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(first, last, BLOCK_K):
        in_k = start + tl.arange(0, BLOCK_K) < last
        a = tl.load(a_ptrs, mask=(offs_m < m)[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & (offs_n < n)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="tf32x3")
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * n
    offs = part * m * n + offs_m[:, None] * n + offs_n[None, :]
    tl.store(partial_ptr + offs, acc, mask=(offs_m < m)[:, None] & (offs_n < n)[None, :])


@triton.jit
def join_kernel(partial_ptr, c_ptr, size, parts, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for part in range(0, parts):
        acc += tl.load(partial_ptr + tl.cast(part, tl.int64) * size + offs, mask=offs < size, other=0.0)
    tl.store(c_ptr + offs, acc, mask=offs < size)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        a, b = A.contiguous(), B.contiguous()
        m, k = a.shape
        n = b.shape[1]
        c = torch.empty((m, n), device=a.device, dtype=a.dtype)
        per_part = triton.cdiv(triton.cdiv(k, 128), 32) * 32
        parts = triton.cdiv(k, per_part)
        partial = torch.empty((parts, m, n), device=a.device, dtype=torch.float32)
        grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128), parts)
        partial_kernel[grid](
            a, b, partial, m, n, k, per_part, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, num_warps=8, num_stages=4
        )
        join_kernel[(triton.cdiv(m * n, 256),)](partial, c, m * n, parts, BLOCK=256, num_warps=4)
        return c
