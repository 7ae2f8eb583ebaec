"""Max pooling along a line in Triton: a program takes a strip of outputs, and its shifted reads meet in the cache."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_pool_kernel(
    x_ptr,
    y_ptr,
    length,
    out_length,
    strips,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    DILATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = (tl.program_id(0) // strips).to(tl.int64)
    out = (tl.program_id(0) % strips) * BLOCK + tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for tap in tl.static_range(KERNEL):
        pos = out * STRIDE - PADDING + tap * DILATION
        x = tl.load(x_ptr + line * length + pos, mask=(pos >= 0) & (pos < length), other=float("-inf"))
        best = tl.maximum(best, x)
    tl.store(y_ptr + line * out_length + out, best, mask=out < out_length)


class ModelNew(nn.Module):
    def __init__(
        self,
        kernel_size: int,
        stride: int | None = None,
        padding: int = 0,
        dilation: int = 1,
        return_indices: bool = False,
    ) -> None:
        super().__init__()
        if return_indices:
            raise ValueError("this kernel gives no indices")
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, channels, length = x.shape
        out_length = (length + 2 * self.padding - self.dilation * (self.kernel_size - 1) - 1) // self.stride + 1
        y = torch.empty((batch, channels, out_length), device=x.device, dtype=x.dtype)
        block = 1024
        strips = triton.cdiv(out_length, block)
        max_pool_kernel[(strips * batch * channels,)](
            x,
            y,
            length,
            out_length,
            strips,
            KERNEL=self.kernel_size,
            STRIDE=self.stride,
            PADDING=self.padding,
            DILATION=self.dilation,
            BLOCK=block,
            num_warps=4,
        )
        return y
