"""Log-softmax over long rows in Triton: an online maximum and sum, then one subtraction.

A row does not fit on the chip, so it is read twice, the second time backwards: what the first pass read last may still
be in the L2 cache.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def log_softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    # The maximum starts at a finite value: a lane without any element then gives exp(0) * 0 and not NaN.
    top = tl.full([BLOCK], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + cols, mask=start + cols < n, other=float("-inf"))
        new_top = tl.maximum(top, x)
        total = total * tl.exp(top - new_top) + tl.exp(x - new_top)
        top = new_top
    row_top = tl.max(top, axis=0)
    shift = row_top + tl.log(tl.sum(total * tl.exp(top - row_top), axis=0))
    blocks = tl.cdiv(n, BLOCK)
    for i in range(0, blocks):
        offs = (blocks - 1 - i) * BLOCK + cols
        x = tl.load(x_ptr + row + offs, mask=offs < n)
        tl.store(y_ptr + row + offs, x - shift, mask=offs < n)


class ModelNew(nn.Module):
    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        if x.dim() != 2 or self.dim != 1:
            raise ValueError("this kernel takes the log-softmax of a matrix's rows")
        y = torch.empty_like(x)
        rows, n = x.shape
        log_softmax_kernel[(rows,)](x, y, n, BLOCK=4096, num_warps=8)
        return y
