"""Linear, Swish, bias and group norm: a product kernel, then a norm in place on the module's own fresh tensor."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_swish_bias(
    x_ptr, w_ptr, b_ptr, add_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        w = tl.load(w_ptr + cols[None, :] * K + ks[:, None], mask=(cols[None, :] < N) & (ks[:, None] < K), other=0.0)
        acc = tl.dot(x, w, acc)
    acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0)[None, :]
    acc = acc * tl.sigmoid(acc) + tl.load(add_ptr + cols, mask=cols < N, other=0.0)[None, :]
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def group_norm_(y_ptr, w_ptr, b_ptr, M, groups, width, eps, BM: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * width + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < width
    mask = (rows[:, None] < M) & inside[None, :]
    ptrs = y_ptr + rows[:, None] * groups * width + cols[None, :]
    y = tl.load(ptrs, mask=mask, other=0.0)
    mean = tl.sum(y, axis=1) / width
    d = tl.where(inside[None, :], y - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, axis=1) / width + eps)
    w = tl.load(w_ptr + cols, mask=inside, other=0.0)
    b = tl.load(b_ptr + cols, mask=inside, other=0.0)
    tl.store(ptrs, d * rstd[:, None] * w[None, :] + b[None, :], mask=mask)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, bias_shape):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.group_norm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x):
        m, k = x.shape
        n, groups = self.matmul.out_features, self.group_norm.num_groups
        y = torch.empty((m, n), device=x.device, dtype=x.dtype)
        linear_swish_bias[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
            x, self.matmul.weight, self.matmul.bias, self.bias, y, m, n, k, BM=64, BN=64, BK=32
        )
        width = n // groups
        group_norm_[(triton.cdiv(m, 16), groups)](
            y, self.group_norm.weight, self.group_norm.bias, m, groups, width, self.group_norm.eps,
            BM=16, BLOCK=triton.next_power_of_2(width),
        )  # fmt: skip
        return y
