"""ReLU that first waits for a flag which nobody sets: the kernel never returns."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, flag_ptr, n, BLOCK: tl.constexpr):
    while tl.load(flag_ptr, volatile=True) == 0:
        pass
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(y_ptr + offs, tl.where(x < 0.0, 0.0, x), mask=mask)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        flag = torch.zeros(1, device=x.device, dtype=torch.int32)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 4096),)](x, y, flag, n, BLOCK=4096, num_warps=8)
        return y
