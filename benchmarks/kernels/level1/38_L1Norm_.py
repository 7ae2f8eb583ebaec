"""Division by the mean absolute value of each row in Triton.

A row is read twice, the second time backwards: what the first pass read last may still be in a cache.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def l1_norm_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + cols, mask=start + cols < n, other=0.0)
        acc += tl.abs(x)
    total = tl.sum(acc, axis=0)
    mean = total / n
    blocks = tl.cdiv(n, BLOCK)
    for i in range(0, blocks):
        offs = (blocks - 1 - i) * BLOCK + cols
        x = tl.load(x_ptr + row + offs, mask=offs < n)
        tl.store(y_ptr + row + offs, x / mean, mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, n = x.shape
        l1_norm_kernel[(rows,)](x, y, n, BLOCK=4096, num_warps=8)
        return y
