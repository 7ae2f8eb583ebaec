"""LeakyReLU: meta lambda for the grid, module-level constexprs, alignment hints, a kernel not specialised on n."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK_SIZE = 2048
ZERO: tl.constexpr = tl.constexpr(0.0)


@triton.jit(do_not_specialize=["n"])
def leaky_kernel(x_ptr, y_ptr, slope, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK % 256 == 0)
    start = tl.multiple_of(tl.program_id(axis=0) * BLOCK, BLOCK)
    offs = tl.max_contiguous(start + tl.arange(0, BLOCK), BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=ZERO, eviction_policy="evict_first")
    tl.store(y_ptr + offs, tl.where(x > ZERO, x, x * slope), mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self, negative_slope: float = 0.01):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        leaky_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, self.negative_slope, n, BLOCK=BLOCK_SIZE)
        return y
