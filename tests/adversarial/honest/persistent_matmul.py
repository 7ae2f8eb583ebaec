"""Linear + ReLU + division: persistent programs walk the tiles of the output."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tile_product(x_ptr, w_ptr, rows, cols, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        w = tl.load(w_ptr + cols[None, :] * K + ks[:, None], mask=(cols[None, :] < N) & (ks[:, None] < K), other=0.0)
        acc = tl.dot(x, w, acc)
    return acc


@triton.jit
def persistent_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K, inverse,
    PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    for tile in range(tl.program_id(0), tiles, PROGRAMS):
        rows = tile // tiles_n * BM + tl.arange(0, BM)
        cols = tile % tiles_n * BN + tl.arange(0, BN)
        acc = tile_product(x_ptr, w_ptr, rows, cols, M, N, K, BM, BN, BK)
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :]
        out = tl.maximum(acc, 0.0) * inverse
        tl.store(out_ptr + rows[:, None] * N + cols[None, :], out, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, divisor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.divisor = divisor
        self.programs = 132 if torch.cuda.is_available() else 3

    def forward(self, x):
        m, k = x.shape
        n = self.linear.out_features
        out = torch.empty((m, n), device=x.device, dtype=x.dtype)
        persistent_kernel[(self.programs,)](
            x, self.linear.weight, self.linear.bias, out, m, n, k, 1.0 / self.divisor,
            PROGRAMS=self.programs, BM=64, BN=64, BK=32,
        )  # fmt: skip
        return out
