"""Mean squared error; partial sums go into a buffer that __init__ registered, written anew on every call."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROGRAMS = 32


@triton.jit
def partial_kernel(p_ptr, t_ptr, partial_ptr, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(pid * BLOCK, n, PROGRAMS * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        p = tl.load(p_ptr + offs, mask=offs < n, other=0.0)
        t = tl.load(t_ptr + offs, mask=offs < n, other=0.0)
        acc += (p - t) * (p - t)
    tl.store(partial_ptr + pid, tl.sum(acc, axis=0))


@triton.jit
def mean_kernel(partial_ptr, out_ptr, n, PROGRAMS: tl.constexpr):
    sums = tl.load(partial_ptr + tl.arange(0, PROGRAMS))
    tl.store(out_ptr, tl.sum(sums, axis=0) / n)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("partial", torch.zeros(PROGRAMS), persistent=False)

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        n = predictions.numel()
        out = torch.empty((), device=predictions.device, dtype=predictions.dtype)
        partial_kernel[(PROGRAMS,)](
            predictions.contiguous(), targets.contiguous(), self.partial, n, PROGRAMS=PROGRAMS, BLOCK=2048
        )
        mean_kernel[(1,)](self.partial, out, float(n), PROGRAMS=PROGRAMS)
        return out
