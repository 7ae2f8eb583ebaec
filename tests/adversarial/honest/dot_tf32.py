"""Linear + Swish + scaling; tl.dot asks for TF32 by name."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_linear_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K, factor,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    x_ptrs = x_ptr + rows[:, None] * K + ks[None, :]
    w_ptrs = w_ptr + cols[None, :] * K + ks[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        inside = ks + k < K
        x = tl.load(x_ptrs, mask=(rows[:, None] < M) & inside[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=inside[:, None] & (cols[None, :] < N), other=0.0)
        acc = tl.dot(x, w, acc, input_precision="tf32")
        x_ptrs += BK
        w_ptrs += BK
    y = acc + tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :]
    y = y * tl.sigmoid(y) * factor
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], y, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scaling_factor: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.shape, self.matmul.out_features
        out = torch.empty((m, n), device=x.device, dtype=x.dtype)
        swish_linear_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
            x.contiguous(), self.matmul.weight, self.matmul.bias, out, m, n, k, self.scaling_factor,
            BM=64, BN=64, BK=32, num_warps=4, num_stages=4,
        )  # fmt: skip
        return out
