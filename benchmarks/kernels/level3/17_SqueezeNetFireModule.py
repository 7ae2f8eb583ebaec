"""SqueezeNet's fire module in Triton: three convolutions with bias and ReLU fused, on TF32 tensor cores.

One program computes a strip of pixels of one output row; the product runs over the taps (input channel, kernel row,
kernel column) in the weight's own memory order. Both expanding
convolutions write into their part of the output, so nothing is concatenated.
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
    acc = tl.maximum(acc, 0.0)
    # Within a sample 32-bit offsets are enough.
    y_base = y_ptr + (sample * all_channels + first_channel) * out_height * out_width
    offs = (oc[None, :] * out_height + row) * out_width + col[:, None]
    tl.store(y_base + offs, acc, mask=(col < out_width)[:, None] & in_oc[None, :])


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
        BLOCK_T=16,
        num_warps=4,
        num_stages=3,
    )


class ModelNew(nn.Module):
    def __init__(
        self, in_channels: int, squeeze_channels: int, expand1x1_channels: int, expand3x3_channels: int
    ) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeeze_channels, kernel_size=1)
        self.expand1x1 = nn.Conv2d(squeeze_channels, expand1x1_channels, kernel_size=1)
        self.expand3x3 = nn.Conv2d(squeeze_channels, expand3x3_channels, kernel_size=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, _, height, width = x.shape
        squeezed = torch.empty((batch, self.squeeze.out_channels, height, width), device=x.device, dtype=x.dtype)
        conv(x, self.squeeze, squeezed, 0)
        ones = self.expand1x1.out_channels
        channels = ones + self.expand3x3.out_channels
        y = torch.empty((batch, channels, height, width), device=x.device, dtype=x.dtype)
        conv(squeezed, self.expand1x1, y, 0)
        conv(squeezed, self.expand3x3, y, ones)
        return y
