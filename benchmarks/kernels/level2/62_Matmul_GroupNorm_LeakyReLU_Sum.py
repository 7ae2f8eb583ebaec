"""Linear layer, GroupNorm, LeakyReLU and doubling in one Triton kernel with TF32 tensor cores.

A group is 16 features and lies within one tile, so the norm needs no second pass.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    gain_ptr,
    shift_ptr,
    y_ptr,
    m,
    n,
    k,
    eps,
    slope,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    GROUP: tl.constexpr,
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
    groups = tl.reshape(acc, [BLOCK_M, BLOCK_N // GROUP, GROUP])
    diff = groups - (tl.sum(groups, axis=2) / GROUP)[:, :, None]
    var = tl.sum(diff * diff, axis=2) / GROUP
    normed = tl.reshape(diff / tl.sqrt(var + eps)[:, :, None], [BLOCK_M, BLOCK_N])
    gain = tl.load(gain_ptr + offs_n, mask=offs_n < n, other=0.0)
    shift = tl.load(shift_ptr + offs_n, mask=offs_n < n, other=0.0)
    acc = normed * gain[None, :] + shift[None, :]
    acc = tl.where(acc < 0.0, acc * slope, acc)
    acc = acc + acc
    tl.store(y_ptr + offs, acc, mask=mask)


class ModelNew(nn.Module):
    def __init__(
        self, input_size: int, hidden_size: int, num_groups: int, eps: float = 1e-5, negative_slope: float = 0.01
    ) -> None:
        super().__init__()
        self.fc = nn.Linear(input_size, hidden_size)
        self.gn = nn.GroupNorm(num_groups=num_groups, num_channels=hidden_size, eps=eps)
        self.negative_slope = negative_slope
        self.group = hidden_size // num_groups
        if self.group not in (1, 2, 4, 8, 16, 32, 64, 128):
            raise ValueError("a group must be a power of two that divides the tile's 128 columns")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        m, k = x.shape
        n = self.fc.weight.shape[0]
        y = torch.empty((m, n), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128),)
        linear_kernel[grid](
            x,
            self.fc.weight,
            self.fc.bias,
            self.gn.weight,
            self.gn.bias,
            y,
            m,
            n,
            k,
            self.gn.eps,
            self.negative_slope,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=32,
            GROUP_M=8,
            GROUP=self.group,
            num_warps=8,
            num_stages=3,
        )
        return y
