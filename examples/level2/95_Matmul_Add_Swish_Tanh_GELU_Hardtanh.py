"""One kernel: TF32 matrix product, then both biases and the four activations in the epilogue."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M = 128, 128, 32, 8


@triton.jit
def matmul_add_activations_kernel(
    x_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    # Programs go through GROUP_M row blocks together, so that a column block of the weights is reused from L2.
    pid = tl.program_id(0)
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    first_m = pid // (GROUP_M * blocks_n) * GROUP_M
    group_m = min(blocks_m - first_m, GROUP_M)
    in_group = pid % (GROUP_M * blocks_n)
    rows = (first_m + in_group % group_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = in_group // group_m * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    # Rows and columns past the edge wrap around and are masked at the store; the weight is (N, K), read transposed.
    x_ptrs = x_ptr + (rows % M)[:, None] * K + ks[None, :]
    w_ptrs = w_ptr + (cols % N)[None, :] * K + ks[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        x = tl.load(x_ptrs, mask=ks[None, :] < left, other=0.0)
        w = tl.load(w_ptrs, mask=ks[:, None] < left, other=0.0)
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K

    y = acc + tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :]
    y = y + tl.load(add_ptr + cols, mask=cols < N, other=0.0)[None, :]
    y = y * tl.sigmoid(y)
    y = 2.0 * tl.sigmoid(2.0 * y) - 1.0  # tanh
    y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    y = tl.minimum(tl.maximum(y, -1.0), 1.0)
    out_ptrs = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_ptrs, y, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, add_value_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        weight = self.matmul.weight
        m, k = x.shape
        n = weight.shape[0]
        out = torch.empty((m, n), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
        matmul_add_activations_kernel[grid](
            x, weight, self.matmul.bias, self.add_value, out, m, n, k,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, GROUP_M=GROUP_M, num_warps=8, num_stages=3,
        )  # fmt: skip
        return out
