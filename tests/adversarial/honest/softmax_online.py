"""Online softmax: maximum and sum in one pass over blocks of the row, rescaled when the maximum grows."""

import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def online_softmax_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * cols
    y_ptr += row * cols
    best = -float("inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < cols, other=float("-inf"))
        new_best = tl.maximum(best, tl.max(x, axis=0))
        total = total * tl.exp(best - new_best) + tl.sum(tl.exp(x - new_best), axis=0)
        best = new_best
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < cols, other=0.0)
        tl.store(y_ptr + offs, tl.exp(x - best) / total, mask=offs < cols)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        y = x.new_empty(x.shape)
        online_softmax_kernel[(x.size(0),)](x, y, x.size(1), BLOCK=512, num_warps=4)
        return y
