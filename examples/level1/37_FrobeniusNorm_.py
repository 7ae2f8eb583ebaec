"""x / ||x||: partial sums of squares, which every program of the second kernel adds up in the same order."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK = 4096
MAX_PARTS = 1024


@triton.jit
def square_sum_kernel(x_ptr, part_ptr, count, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0) * BLOCK
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(pid * BLOCK, count, step):
        index = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + index, mask=index < count, other=0.0)
        total += x * x
    tl.store(part_ptr + pid, tl.sum(total, axis=0))


@triton.jit
def divide_kernel(x_ptr, part_ptr, out_ptr, count, parts, BLOCK_PARTS: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.arange(0, BLOCK_PARTS)
    norm = tl.sqrt(tl.sum(tl.load(part_ptr + part, mask=part < parts, other=0.0), axis=0))
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < count)
    tl.store(out_ptr + index, x / norm, mask=index < count)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        count = x.numel()
        blocks = triton.cdiv(count, BLOCK)
        parts = min(MAX_PARTS, blocks)
        part = torch.empty(parts, dtype=torch.float32, device=x.device)
        out = torch.empty_like(x)
        square_sum_kernel[(parts,)](x, part, count, BLOCK=BLOCK, num_warps=8)
        block_parts = triton.next_power_of_2(parts)
        divide_kernel[(blocks,)](x, part, out, count, parts, BLOCK_PARTS=block_parts, BLOCK=BLOCK, num_warps=8)
        return out
