"""Pointwise convolution in Triton: for each sample the weight times a matrix of channels and pixels, in TF32."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pointwise_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    channels,
    out_channels,
    pixels,
    BLOCK_OC: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    oc = tl.program_id(2) * BLOCK_OC + tl.arange(0, BLOCK_OC)
    x_base = x_ptr + sample * channels * pixels
    acc = tl.zeros([BLOCK_OC, BLOCK_P], tl.float32)
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        in_channels = channel < channels
        w_mask = (oc < out_channels)[:, None] & in_channels[None, :]
        w = tl.load(w_ptr + oc[:, None] * channels + channel[None, :], mask=w_mask, other=0.0)
        x_mask = in_channels[:, None] & (pixel < pixels)[None, :]
        x = tl.load(x_base + channel[:, None] * pixels + pixel[None, :], mask=x_mask, other=0.0)
        acc = tl.dot(w, x, acc)
    y_base = y_ptr + sample * out_channels * pixels
    y_mask = (oc < out_channels)[:, None] & (pixel < pixels)[None, :]
    tl.store(y_base + oc[:, None] * pixels + pixel[None, :], acc, mask=y_mask)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bias: bool = False) -> None:
        super().__init__()
        if bias:
            raise ValueError("this kernel adds no bias")
        self.conv1d = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        weight = self.conv1d.weight.contiguous()
        batch, channels, height, width = x.shape
        out_channels = weight.shape[0]
        pixels = height * width
        y = torch.empty((batch, out_channels, height, width), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(pixels, 128), batch, triton.cdiv(out_channels, 128))
        pointwise_kernel[grid](
            x,
            weight,
            y,
            channels,
            out_channels,
            pixels,
            BLOCK_OC=128,
            BLOCK_P=128,
            BLOCK_C=32,
            num_warps=8,
            num_stages=2,
        )
        return y
