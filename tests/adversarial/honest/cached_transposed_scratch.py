"""Linear + Swish + scaling: the product is written transposed into scratch that the first forward made and kept; a
second kernel transposes it back with the activation. The scratch is as large as the output."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def transposed_product(x_ptr, w_ptr, b_ptr, t_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        w = tl.load(w_ptr + cols[:, None] * K + ks[None, :], mask=(cols[:, None] < N) & (ks[None, :] < K), other=0.0)
        x = tl.load(x_ptr + rows[None, :] * K + ks[:, None], mask=(rows[None, :] < M) & (ks[:, None] < K), other=0.0)
        acc = tl.dot(w, x, acc)
    acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0)[:, None]
    tl.store(t_ptr + cols[:, None] * M + rows[None, :], acc, mask=(cols[:, None] < N) & (rows[None, :] < M))


@triton.jit
def swish_back(t_ptr, y_ptr, factor, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    t = tl.load(t_ptr + cols[None, :] * M + rows[:, None], mask=mask, other=0.0)
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], t * tl.sigmoid(t) * factor, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor
        self.cache = {}

    def scratch(self, m: int, n: int, like: torch.Tensor) -> torch.Tensor:
        if (m, n) not in self.cache:
            self.cache[m, n] = torch.empty((n, m), device=like.device, dtype=like.dtype)
        return self.cache[m, n]

    def forward(self, x):
        m, k = x.shape
        n = self.matmul.out_features
        t = self.scratch(m, n, x)
        y = torch.empty((m, n), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, 64), triton.cdiv(n, 32))
        transposed_product[grid](x, self.matmul.weight, self.matmul.bias, t, m, n, k, BM=64, BN=32, BK=32)
        swish_back[grid](t, y, self.scaling_factor, m, n, BM=64, BN=32)
        return y
