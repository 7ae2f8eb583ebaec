"""InstanceNorm in Triton: one program a plane, which sums it up and then normalises it.

The sums are of the differences from the plane's first element, so that a large mean does not cancel the variance. The
second pass runs backwards: what the first pass read last may still be in the L2 cache.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def instance_norm_kernel(x_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64) * n
    lane = tl.arange(0, BLOCK)
    shift = tl.load(x_ptr + plane)
    sums = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    last = n
    for start in range(0, last, BLOCK):
        offs = start + lane
        x = tl.load(x_ptr + plane + offs, mask=offs < last, other=0.0)
        away = tl.where(offs < last, x - shift, 0.0)
        sums += away
        squares += away * away
    mean = tl.sum(sums, axis=0) / n
    var = tl.sum(squares, axis=0) / n - mean * mean
    rstd = 1.0 / tl.sqrt(tl.maximum(var, 0.0) + eps)
    blocks = tl.cdiv(n, BLOCK)
    for i in range(0, blocks):
        offs = (blocks - 1 - i) * BLOCK + lane
        x = tl.load(x_ptr + plane + offs, mask=offs < n)
        tl.store(y_ptr + plane + offs, (x - shift - mean) * rstd, mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.inorm = nn.InstanceNorm2d(num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        batch, channels, height, width = x.shape
        instance_norm_kernel[(batch * channels,)](x, y, height * width, self.inorm.eps, BLOCK=8192, num_warps=16)
        return y
