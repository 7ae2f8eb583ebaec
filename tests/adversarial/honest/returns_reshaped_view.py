"""ReLU on a flat (rows, 256) view of the input; returns the flat result viewed in the input's shape."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, tl.where(x > 0, x, 0.0), mask=offs < n)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1)
        out = torch.empty(flat.shape[0], device=x.device, dtype=x.dtype)
        relu_kernel[(triton.cdiv(flat.shape[0], 1024),)](flat, out, flat.shape[0], BLOCK=1024)
        return out.view(x.size(0), -1)
