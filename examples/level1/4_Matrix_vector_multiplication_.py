"""A matrix times a vector: a few rows a program, which walks along them and reads the vector from L2."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK_M = 4
BLOCK_K = 1024


@triton.jit
def matvec_kernel(a_ptr, b_ptr, out_ptr, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ptrs = a_ptr + m.to(tl.int64)[:, None] * K
    total = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(row_ptrs + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_ptr + k, mask=k < K, other=0.0)
        total += a * b[None, :]
    tl.store(out_ptr + m, tl.sum(total, axis=1), mask=m < M)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        A, B = A.contiguous(), B.contiguous()
        M, K = A.shape
        out = torch.empty((M, 1), dtype=A.dtype, device=A.device)
        matvec_kernel[(triton.cdiv(M, BLOCK_M),)](A, B, out, M, K, BLOCK_M=BLOCK_M, BLOCK_K=BLOCK_K, num_warps=4)
        return out
