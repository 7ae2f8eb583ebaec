"""Linear, then scale and residual: the product goes into a scratch tensor that the module keeps from call to call."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(
            x_ptr + rows[:, None] * K + (ks + k)[None, :],
            mask=(rows[:, None] < M) & (ks + k < K)[None, :],
            other=0.0,
        )
        w = tl.load(
            w_ptr + cols[None, :] * K + (ks + k)[:, None],
            mask=(cols[None, :] < N) & (ks + k < K)[:, None],
            other=0.0,
        )
        acc = tl.dot(x, w, acc)
    acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :]
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def scale_add_kernel(y_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, y * factor + y, mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor
        self._scratch = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m, k = x.shape
        n = self.matmul.out_features
        if self._scratch is None or self._scratch.shape != (m, n):
            self._scratch = torch.empty((m, n), device=x.device, dtype=x.dtype)
        linear_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
            x, self.matmul.weight, self.matmul.bias, self._scratch, m, n, k, BM=64, BN=64, BK=32
        )
        out = torch.empty((m, n), device=x.device, dtype=x.dtype)
        scale_add_kernel[(triton.cdiv(m * n, 1024),)](self._scratch, out, self.scaling_factor, m * n, BLOCK=1024)
        return out
