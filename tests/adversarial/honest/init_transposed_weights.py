"""Gemm + bias + ReLU; __init__ stores the weight transposed under a name of its own, so that columns are coalesced."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gemm_bias_relu(x_ptr, wt_ptr, bias_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        w = tl.load(wt_ptr + ks[:, None] * N + cols[None, :], mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(x, w, acc)
    y = tl.maximum(acc + tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :], 0.0)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], y, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, bias_shape):
        super().__init__()
        gemm = nn.Linear(in_features, out_features, bias=False)  # drawn in the same order as the reference draws
        self.weight_t = nn.Parameter(gemm.weight.detach().t().contiguous())
        self.added_bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        m, k = x.shape
        n = self.weight_t.shape[1]
        out = torch.empty(m, n, device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
        gemm_bias_relu[grid](x, self.weight_t, self.added_bias, out, m, n, k, BM=64, BN=64, BK=32)
        return out
