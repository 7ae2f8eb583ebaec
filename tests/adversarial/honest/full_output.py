"""ELU into a tensor that torch.full made, so that a missed element would show as NaN."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def elu_kernel(x_ptr, y_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, tl.where(x > 0, x, alpha * (tl.exp(tl.minimum(x, 0.0)) - 1.0)), mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        out = torch.full(x.shape, float("nan"), dtype=x.dtype, device=x.device)
        elu_kernel[(triton.cdiv(x.numel(), 2048),)](x, out, self.alpha, x.numel(), BLOCK=2048)
        return out
