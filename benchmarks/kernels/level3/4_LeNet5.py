"""LeNet-5 in Triton on TF32 tensor cores: one kernel for convolution, ReLU and pooling, one for the linear layers."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv_pool_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    positions,
    height,
    width,
    pooled_height,
    pooled_width,
    out_channels,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_OC: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """A program computes the same channels of BLOCK_P pooled pixels, which may lie in several images."""
    TAPS: tl.constexpr = CHANNELS * KERNEL * KERNEL
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    in_positions = position < positions
    pixels = pooled_height * pooled_width
    sample = (position // pixels).to(tl.int64)
    pixel = position % pixels
    row = pixel // pooled_width * 2
    col = pixel % pooled_width * 2
    oc = tl.arange(0, BLOCK_OC)
    in_oc = oc < out_channels
    x_base = x_ptr + sample * CHANNELS * height * width
    best = tl.full([BLOCK_P, BLOCK_OC], float("-inf"), tl.float32)
    for corner in tl.static_range(4):
        x_ptrs = x_base + (row + corner // 2) * width + col + corner % 2
        acc = tl.zeros([BLOCK_P, BLOCK_OC], tl.float32)
        for start in range(0, TAPS, BLOCK_T):
            tap = start + tl.arange(0, BLOCK_T)
            in_taps = tap < TAPS
            tap_offset = (tap // (KERNEL * KERNEL) * height + (tap // KERNEL) % KERNEL) * width + tap % KERNEL
            x_mask = in_positions[:, None] & in_taps[None, :]
            x = tl.load(x_ptrs[:, None] + tap_offset[None, :], mask=x_mask, other=0.0)
            w_mask = in_taps[:, None] & in_oc[None, :]
            w = tl.load(w_ptr + oc[None, :] * TAPS + tap[:, None], mask=w_mask, other=0.0)
            acc = tl.dot(x, w, acc)
        best = tl.maximum(best, acc)
    # The bias and the ReLU keep the order of the four values, so they can wait for the largest.
    best = tl.maximum(best + tl.load(b_ptr + oc, mask=in_oc, other=0.0)[None, :], 0.0)
    offs = (sample[:, None] * out_channels + oc[None, :]) * pixels + pixel[:, None]
    tl.store(y_ptr + offs, best, mask=in_positions[:, None] & in_oc[None, :])


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
    RELU: tl.constexpr,
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
    if RELU:
        acc = tl.maximum(acc, 0.0)
    tl.store(y_ptr + offs, acc, mask=mask)


def conv_pool(x: torch.Tensor, layer: nn.Conv2d) -> torch.Tensor:
    batch, channels, height, width = x.shape
    weight = layer.weight.contiguous()
    out_channels, kernel = weight.shape[0], weight.shape[2]
    pooled_height, pooled_width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
    y = torch.empty((batch, out_channels, pooled_height, pooled_width), device=x.device, dtype=x.dtype)
    positions = batch * pooled_height * pooled_width
    conv_pool_kernel[(triton.cdiv(positions, 128),)](
        x,
        weight,
        layer.bias,
        y,
        positions,
        height,
        width,
        pooled_height,
        pooled_width,
        out_channels,
        CHANNELS=channels,
        KERNEL=kernel,
        BLOCK_P=128,
        BLOCK_OC=16,
        BLOCK_T=32,
        num_warps=4,
        num_stages=2,
    )
    return y


def linear(x: torch.Tensor, layer: nn.Linear, relu: bool) -> torch.Tensor:
    m, k = x.shape
    n = layer.weight.shape[0]
    y = torch.empty((m, n), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(m, 64) * triton.cdiv(n, 64),)
    linear_kernel[grid](
        x,
        layer.weight,
        layer.bias,
        y,
        m,
        n,
        k,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
        GROUP_M=8,
        RELU=relu,
        num_warps=4,
        num_stages=3,
    )
    return y


class ModelNew(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = conv_pool(x.contiguous(), self.conv1)
        x = conv_pool(x, self.conv2).view(-1, 16 * 5 * 5)
        x = linear(x, self.fc1, relu=True)
        x = linear(x, self.fc2, relu=True)
        return linear(x, self.fc3, relu=False)
