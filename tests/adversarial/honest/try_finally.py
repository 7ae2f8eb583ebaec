"""Sum over a dimension; forward frees its scratch in a finally block and re-raises what goes wrong."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, length, width, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    base = tl.program_id(1).to(tl.int64) * length * width
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for r in range(length):
        acc += tl.load(x_ptr + base + r * width + cols, mask=cols < width, other=0.0)
    tl.store(out_ptr + tl.program_id(1) * width + cols, acc, mask=cols < width)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        batch, length, width = x.shape
        scratch = None
        try:
            scratch = torch.empty((batch, width), device=x.device, dtype=x.dtype)
            sum_kernel[(triton.cdiv(width, 128), batch)](x, scratch, length, width, BLOCK=128)
            return scratch.unsqueeze(self.dim)
        except RuntimeError as error:
            raise RuntimeError(f"sum over {tuple(x.shape)} failed") from error
        finally:
            del scratch
