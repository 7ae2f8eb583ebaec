"""LeakyReLU in place on a clone of the input."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def leaky_relu_(x_ptr, slope, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(x_ptr + offs, tl.where(x >= 0, x, slope * x), mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self, negative_slope: float = 0.01):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        leaky_relu_[(triton.cdiv(y.numel(), 1024),)](y, self.negative_slope, y.numel(), BLOCK=1024)
        return y
