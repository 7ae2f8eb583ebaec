"""Sum over a dimension: programs add their parts into a zeroed output with atomics."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, length, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * ROWS
    batch = tl.program_id(2).to(tl.int64)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for r in range(first, min(first + ROWS, length)):
        acc += tl.load(x_ptr + batch * length * width + r * width + cols, mask=cols < width, other=0.0)
    tl.atomic_add(out_ptr + batch * width + cols, acc, mask=cols < width)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim != 1:
            raise ValueError("written for dim=1")
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, length, width = x.shape
        out = torch.zeros((batch, 1, width), device=x.device, dtype=x.dtype)
        rows = 256 if length > 512 else 64
        sum_kernel[(triton.cdiv(width, 256), triton.cdiv(length, rows), batch)](
            x, out, length, width, ROWS=rows, BLOCK=256
        )
        return out
