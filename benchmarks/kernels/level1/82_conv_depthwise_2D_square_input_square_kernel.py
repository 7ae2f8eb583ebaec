"""Depthwise 2D convolution in Triton: a program takes a small tile of one plane, and the taps share its cache lines."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    channels,
    height,
    width,
    out_height,
    out_width,
    tiles_r,
    tiles_c,
    KERNEL: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    tile = tl.program_id(0) % (tiles_r * tiles_c)
    plane = tl.program_id(0) // (tiles_r * tiles_c)
    row = (tile // tiles_c) * BLOCK_R + tl.arange(0, BLOCK_R)
    col = (tile % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)
    x_plane = x_ptr + plane.to(tl.int64) * height * width
    y_plane = y_ptr + plane.to(tl.int64) * out_height * out_width
    w_plane = w_ptr + (plane % channels) * KERNEL * KERNEL
    acc = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        r = row - PADDING + tap // KERNEL
        c = col - PADDING + tap % KERNEL
        inside = ((r >= 0) & (r < height))[:, None] & ((c >= 0) & (c < width))[None, :]
        x = tl.load(x_plane + r[:, None] * width + c[None, :], mask=inside, other=0.0)
        acc += x * tl.load(w_plane + tap)
    mask = (row < out_height)[:, None] & (col < out_width)[None, :]
    tl.store(y_plane + row[:, None] * out_width + col[None, :], acc, mask=mask)


class ModelNew(nn.Module):
    def __init__(
        self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, bias: bool = False
    ) -> None:
        super().__init__()
        if stride != 1 or bias:
            raise ValueError("this kernel convolves with stride 1 and no bias")
        self.padding = padding
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size, padding=padding, groups=in_channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        weight = self.conv2d.weight.contiguous()
        batch, channels, height, width = x.shape
        kernel = weight.shape[2]
        out_height, out_width = height + 2 * self.padding - kernel + 1, width + 2 * self.padding - kernel + 1
        y = torch.empty((batch, channels, out_height, out_width), device=x.device, dtype=x.dtype)
        tiles_r, tiles_c = triton.cdiv(out_height, 8), triton.cdiv(out_width, 128)
        depthwise_kernel[(tiles_r * tiles_c * batch * channels,)](
            x,
            weight,
            y,
            channels,
            height,
            width,
            out_height,
            out_width,
            tiles_r,
            tiles_c,
            KERNEL=kernel,
            PADDING=self.padding,
            BLOCK_R=8,
            BLOCK_C=128,
            num_warps=4,
        )
        return y
