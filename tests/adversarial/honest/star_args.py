"""Mean squared error in one kernel with `forward(self, *args, **kwargs)`; the last program adds up the parts."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mse_kernel(a_ptr, b_ptr, parts_ptr, done_ptr, out_ptr, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(pid * BLOCK, n, PROGRAMS * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        d = tl.load(a_ptr + offs, mask=offs < n, other=0.0) - tl.load(b_ptr + offs, mask=offs < n, other=0.0)
        acc += d * d
    tl.store(parts_ptr + pid, tl.sum(acc, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(done_ptr, 1, sem="acq_rel") == PROGRAMS - 1:
        parts = tl.load(parts_ptr + tl.arange(0, PROGRAMS), volatile=True)
        tl.store(out_ptr, tl.sum(parts, axis=0) / n)


class ModelNew(nn.Module):
    PROGRAMS = 64

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, *args, **kwargs):
        a, b = args
        parts = torch.empty(self.PROGRAMS, device=a.device, dtype=torch.float32)
        done = torch.zeros(1, device=a.device, dtype=torch.int32)
        out = torch.empty([], device=a.device, dtype=a.dtype)
        mse_kernel[(self.PROGRAMS,)](a, b, parts, done, out, a.numel(), PROGRAMS=self.PROGRAMS, BLOCK=1024)
        return out
