"""Frobenius norm with a module-level cache of launch plans and scratch, keyed by shape, dtype and device."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

_PLANS: dict = {}


@triton.jit
def squares_kernel(x_ptr, part_ptr, n, span, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(pid * span, min((pid + 1) * span, n), BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < min((pid + 1) * span, n), other=0.0)
        acc += x * x
    tl.store(part_ptr + pid, tl.sum(acc, axis=0))


@triton.jit
def scale_kernel(x_ptr, part_ptr, y_ptr, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.sum(tl.load(part_ptr + tl.arange(0, PARTS)), axis=0)
    inverse = 1.0 / tl.sqrt(total)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * inverse, mask=offs < n)


def plan_for(x):
    key = (tuple(x.shape), x.dtype, x.device)
    if key not in _PLANS:
        parts = 256 if x.is_cuda else 8
        span = triton.cdiv(x.numel(), parts)
        _PLANS[key] = (parts, span, torch.empty(parts, device=x.device, dtype=torch.float32))
    return _PLANS[key]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        parts, span, scratch = plan_for(x)
        n = x.numel()
        y = torch.empty_like(x)
        squares_kernel[(parts,)](x, scratch, n, span, BLOCK=1024)
        scale_kernel[(triton.cdiv(n, 2048),)](x, scratch, y, n, PARTS=parts, BLOCK=2048)
        return y
