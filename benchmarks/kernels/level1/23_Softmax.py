"""Softmax over long rows in Triton: an online maximum and sum, then the division.

A row does not fit on the chip, so it is read twice. The second pass runs backwards: what the first pass read last is
the part of the row that may still be in the L2 cache.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    # Every lane keeps its own maximum and sum; they meet once, after the loop. The maximum starts at a finite value
    # so that a lane without any element gives exp(0) * 0 and not NaN.
    top = tl.full([BLOCK], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + cols, mask=start + cols < n, other=float("-inf"))
        new_top = tl.maximum(top, x)
        total = total * tl.exp(top - new_top) + tl.exp(x - new_top)
        top = new_top
    row_top = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(top - row_top), axis=0)
    blocks = tl.cdiv(n, BLOCK)
    for i in range(0, blocks):
        offs = (blocks - 1 - i) * BLOCK + cols
        x = tl.load(x_ptr + row + offs, mask=offs < n, other=float("-inf"))
        tl.store(y_ptr + row + offs, tl.exp(x - row_top) * scale, mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, n = x.shape
        softmax_kernel[(rows,)](x, y, n, BLOCK=4096, num_warps=8)
        return y
