"""Linear layer, GroupNorm, minimum over the features and an added bias in Triton with TF32 tensor cores.

A group is 16 features and lies within one tile. Each tile leaves one minimum a row; a second kernel takes the
minimum of the tiles' and adds it to every bias: the output has a row a feature and a column a sample.
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
    partial_ptr,
    m,
    n,
    k,
    eps,
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
    tile_m = first_m + in_group % group_rows
    tile_n = in_group // group_rows
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
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
    bias = tl.load(b_ptr + offs_n, mask=offs_n < n, other=0.0)
    acc = acc + bias[None, :]
    groups = tl.reshape(acc, [BLOCK_M, BLOCK_N // GROUP, GROUP])
    diff = groups - (tl.sum(groups, axis=2) / GROUP)[:, :, None]
    var = tl.sum(diff * diff, axis=2) / GROUP
    normed = tl.reshape(diff / tl.sqrt(var + eps)[:, :, None], [BLOCK_M, BLOCK_N])
    gain = tl.load(gain_ptr + offs_n, mask=offs_n < n, other=0.0)
    shift = tl.load(shift_ptr + offs_n, mask=offs_n < n, other=0.0)
    acc = normed * gain[None, :] + shift[None, :]
    partial = tl.min(tl.where((offs_n < n)[None, :], acc, float("inf")), axis=1)
    tl.store(partial_ptr + offs_m * tiles_n + tile_n, partial, mask=offs_m < m)


@triton.jit
def min_add_kernel(
    partial_ptr, bias_ptr, y_ptr, m, n, tiles, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr
):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.arange(0, BLOCK_T)
    mask = (offs_m < m)[:, None] & (tile < tiles)[None, :]
    partial = tl.load(partial_ptr + offs_m[:, None] * tiles + tile[None, :], mask=mask, other=float("inf"))
    smallest = tl.min(partial, axis=1)
    bias = tl.load(bias_ptr + offs_n, mask=offs_n < n, other=0.0)
    offs = offs_n.to(tl.int64)[:, None] * m + offs_m[None, :]
    tl.store(y_ptr + offs, bias[:, None] + smallest[None, :], mask=(offs_n < n)[:, None] & (offs_m < m)[None, :])


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, num_groups: int, bias_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.group = out_features // num_groups
        if self.group not in (1, 2, 4, 8, 16, 32, 64, 128):
            raise ValueError("a group must be a power of two that divides the tile's 128 columns")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        m, k = x.shape
        n = self.gemm.weight.shape[0]
        tiles = triton.cdiv(n, 128)
        partial = torch.empty((m, tiles), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, 128) * tiles,)
        linear_kernel[grid](
            x,
            self.gemm.weight,
            self.gemm.bias,
            self.group_norm.weight,
            self.group_norm.bias,
            partial,
            m,
            n,
            k,
            self.group_norm.eps,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=32,
            GROUP_M=8,
            GROUP=self.group,
            num_warps=8,
            num_stages=3,
        )
        y = torch.empty((1, n, m, 1), device=x.device, dtype=x.dtype)
        block_t = triton.next_power_of_2(tiles)
        min_add_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
            partial, self.bias, y, m, n, tiles, BLOCK_M=64, BLOCK_N=64, BLOCK_T=block_t, num_warps=4
        )
        return y
