"""ELU: the launch is a functools.partial that __init__ built."""

import functools

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def elu_kernel(x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, tl.where(x > 0, x, alpha * (tl.exp(x) - 1)), mask=offs < n)


def launch(kernel, block, alpha, x, y):
    kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), alpha, BLOCK=block)


class ModelNew(nn.Module):
    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.run = functools.partial(launch, elu_kernel, 1024, alpha)

    def forward(self, x):
        y = torch.empty_like(x)
        self.run(x, y)
        return y
