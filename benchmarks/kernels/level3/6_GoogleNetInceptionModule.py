"""GoogLeNet's inception module in Triton: six convolutions on TF32 tensor cores and a max pooling.

One program computes a strip of pixels of one output row; the product runs over the taps (input channel, kernel row,
kernel column) in the weight's own memory order. Every
branch writes into its part of the output, so nothing is concatenated.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    height,
    width,
    out_height,
    out_width,
    out_channels,
    all_channels,
    first_channel,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_OC: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    TAPS: tl.constexpr = CHANNELS * KERNEL * KERNEL
    strip = tl.program_id(0)
    row_and_sample = tl.program_id(1)
    sample = (row_and_sample // out_height).to(tl.int64)
    row = row_and_sample % out_height
    col = strip * BLOCK_P + tl.arange(0, BLOCK_P)
    oc = tl.program_id(2) * BLOCK_OC + tl.arange(0, BLOCK_OC)
    in_oc = oc < out_channels
    x_base = x_ptr + sample * CHANNELS * height * width
    acc = tl.zeros([BLOCK_P, BLOCK_OC], tl.float32)
    for start in range(0, TAPS, BLOCK_T):
        tap = start + tl.arange(0, BLOCK_T)
        in_taps = tap < TAPS
        channel = tap // (KERNEL * KERNEL)
        x_row = row + (tap // KERNEL) % KERNEL - PAD
        x_col = col[:, None] + (tap % KERNEL - PAD)[None, :]
        in_rows = in_taps & (x_row >= 0) & (x_row < height)
        x_mask = in_rows[None, :] & (x_col >= 0) & (x_col < width)
        x = tl.load(x_base + (channel * height + x_row)[None, :] * width + x_col, mask=x_mask, other=0.0)
        w_mask = in_taps[:, None] & in_oc[None, :]
        w = tl.load(w_ptr + oc[None, :] * TAPS + tap[:, None], mask=w_mask, other=0.0)
        acc = tl.dot(x, w, acc)
    acc = acc + tl.load(b_ptr + oc, mask=in_oc, other=0.0)[None, :]
    # Within a sample 32-bit offsets are enough.
    y_base = y_ptr + (sample * all_channels + first_channel) * out_height * out_width
    offs = (oc[None, :] * out_height + row) * out_width + col[:, None]
    tl.store(y_base + offs, acc, mask=(col < out_width)[:, None] & in_oc[None, :])


@triton.jit
def max_pool_kernel(x_ptr, y_ptr, height, width, BLOCK: tl.constexpr):
    """The largest of each pixel's 3 by 3 neighbourhood; what lies outside the image does not count."""
    image = tl.program_id(0).to(tl.int64) * height * width
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = pixel // width
    col = pixel % width
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for shift_row in tl.static_range(-1, 2):
        for shift_col in tl.static_range(-1, 2):
            r = row + shift_row
            c = col + shift_col
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            best = tl.maximum(best, tl.load(x_ptr + image + r * width + c, mask=inside, other=float("-inf")))
    tl.store(y_ptr + image + pixel, best, mask=row < height)


def conv(x: torch.Tensor, layer: nn.Conv2d, y: torch.Tensor, first_channel: int) -> None:
    """Convolve x into the channels of y from first_channel on; the padding keeps the image's size."""
    batch, channels, height, width = x.shape
    weight = layer.weight.contiguous()
    out_channels, kernel = weight.shape[0], weight.shape[2]
    block_p = 128
    block_oc = min(max(triton.next_power_of_2(out_channels), 16), 64)
    grid = (triton.cdiv(width, block_p), batch * height, triton.cdiv(out_channels, block_oc))
    conv_kernel[grid](
        x,
        weight,
        layer.bias,
        y,
        height,
        width,
        height,
        width,
        out_channels,
        y.shape[1],
        first_channel,
        CHANNELS=channels,
        KERNEL=kernel,
        PAD=kernel // 2,
        BLOCK_P=block_p,
        BLOCK_OC=block_oc,
        BLOCK_T=32,
        num_warps=4,
        num_stages=3,
    )


def max_pool(x: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.shape
    y = torch.empty_like(x)
    grid = (batch * channels, triton.cdiv(height * width, 1024))
    max_pool_kernel[grid](x, y, height, width, BLOCK=1024, num_warps=4)
    return y


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_1x1: int,
        reduce_3x3: int,
        out_3x3: int,
        reduce_5x5: int,
        out_5x5: int,
        pool_proj: int,
    ) -> None:
        super().__init__()
        self.branch1x1 = nn.Conv2d(in_channels, out_1x1, kernel_size=1)
        self.branch3x3 = nn.Sequential(
            nn.Conv2d(in_channels, reduce_3x3, kernel_size=1),
            nn.Conv2d(reduce_3x3, out_3x3, kernel_size=3, padding=1),
        )
        self.branch5x5 = nn.Sequential(
            nn.Conv2d(in_channels, reduce_5x5, kernel_size=1),
            nn.Conv2d(reduce_5x5, out_5x5, kernel_size=5, padding=2),
        )
        self.branch_pool = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1),
            nn.Conv2d(in_channels, pool_proj, kernel_size=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, _, height, width = x.shape
        reduce3, conv3 = self.branch3x3[0], self.branch3x3[1]
        reduce5, conv5 = self.branch5x5[0], self.branch5x5[1]
        project = self.branch_pool[1]
        widths = [layer.out_channels for layer in (self.branch1x1, conv3, conv5, project)]
        y = torch.empty((batch, sum(widths), height, width), device=x.device, dtype=x.dtype)
        reduced3 = torch.empty((batch, reduce3.out_channels, height, width), device=x.device, dtype=x.dtype)
        reduced5 = torch.empty((batch, reduce5.out_channels, height, width), device=x.device, dtype=x.dtype)
        conv(x, self.branch1x1, y, 0)
        conv(x, reduce3, reduced3, 0)
        conv(reduced3, conv3, y, widths[0])
        conv(x, reduce5, reduced5, 0)
        conv(reduced5, conv5, y, widths[0] + widths[1])
        conv(max_pool(x), project, y, widths[0] + widths[1] + widths[2])
        return y
