"""Linear layer, Swish, halving, clamp and tanh in one Triton kernel with TF32 tensor cores."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def linear_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    first_m = pid // (GROUP_M * tiles_n) * GROUP_M
    group_rows = tl.minimum(tiles_m - first_m, GROUP_M)
    in_group = pid % (GROUP_M * tiles_n)
    offs_m = (first_m + in_group % group_rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (in_group // group_rows) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * k + offs_k[None, :]
    w_ptrs = w_ptr + offs_n.to(tl.int64)[None, :] * k + offs_k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        in_k = offs_k < k - start
        x = tl.load(x_ptrs, mask=(offs_m < m)[:, None] & in_k[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=in_k[:, None] & (offs_n < n)[None, :], other=0.0)
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    offs = offs_m.to(tl.int64)[:, None] * n + offs_n[None, :]
    mask = (offs_m < m)[:, None] & (offs_n < n)[None, :]
    bias = tl.load(b_ptr + offs_n, mask=offs_n < n, other=0.0)
    acc = acc + bias[None, :]
    half = acc * tl.sigmoid(acc) / 2.0
    # The tanh of a value between -1 and 1 is itself between them: the second clamp has nothing to do.
    acc = tanh(tl.minimum(tl.maximum(half, -1.0), 1.0))
    tl.store(y_ptr + offs, acc, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        if not bias:
            raise ValueError("this kernel adds a bias")
        self.gemm = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        m, k = x.shape
        n = self.gemm.weight.shape[0]
        y = torch.empty((m, n), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128),)
        linear_kernel[grid](
            x,
            self.gemm.weight,
            self.gemm.bias,
            y,
            m,
            n,
            k,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=32,
            GROUP_M=8,
            num_warps=8,
            num_stages=3,
        )
        return y
