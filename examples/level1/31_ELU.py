"""ELU: one pass over memory; exp only sees values up to 0, so it cannot overflow."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def elu_kernel(x_ptr, out_ptr, count, alpha, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    x = tl.load(x_ptr + index, mask=inside)
    tl.store(out_ptr + index, tl.where(x > 0, x, alpha * (tl.exp(tl.minimum(x, 0.0)) - 1.0)), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        count = x.numel()
        elu_kernel[(triton.cdiv(count, BLOCK),)](x, out, count, self.alpha, BLOCK=BLOCK, num_warps=8)
        return out
