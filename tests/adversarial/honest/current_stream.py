"""Mean over a dimension, launched inside torch.cuda.device and followed by an event on the current stream."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, out_ptr, length, width, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    base = tl.program_id(1).to(tl.int64) * length * width
    acc = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(0, length, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        mask = (rows[:, None] < length) & (cols[None, :] < width)
        acc += tl.load(x_ptr + base + rows[:, None] * width + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + tl.program_id(1) * width + cols, tl.sum(acc, axis=0) / length, mask=cols < width)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.done = None

    def forward(self, x):
        batch, length, width = x.shape
        out = torch.empty((batch, width), device=x.device, dtype=x.dtype)
        with torch.cuda.device(x.device):
            stream = torch.cuda.current_stream()
            mean_kernel[(triton.cdiv(width, 64), batch)](x, out, length, width, BLOCK_R=32, BLOCK_C=64)
            self.done = stream.record_event()
        return out
