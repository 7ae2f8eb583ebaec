"""The submissions that `kernel-env demo` plays for level1/23_Softmax, as source text. Touches nothing."""

from __future__ import annotations

TORCH_FALLBACK = """\
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
"""

_HEADER = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
"""

WRONG = (
    _HEADER
    + """\
def softmax_kernel(x_ptr, y_ptr, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < n_cols
        x = tl.load(x_ptr + row * n_cols + columns, mask=inside)
        # Wrong: never divided by the sum of the row.
        tl.store(y_ptr + row * n_cols + columns, tl.exp(x), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, n_cols=x.shape[1], BLOCK=1024)
        return y
"""
)

SLOW = (
    _HEADER
    + """\
def softmax_kernel(x_ptr, y_ptr, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    # Three serial passes over the row in small blocks.
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -3.0e38, tl.float32)
    for start in range(0, n_cols, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + row * n_cols + columns, mask=columns < n_cols, other=-3.0e38)
        highest = tl.maximum(highest, x)
    row_max = tl.max(highest, axis=0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + row * n_cols + columns, mask=columns < n_cols, other=-3.0e38)
        total += tl.exp(x - row_max)
    row_sum = tl.sum(total, axis=0)
    for start in range(0, n_cols, BLOCK):
        columns = start + lanes
        inside = columns < n_cols
        x = tl.load(x_ptr + row * n_cols + columns, mask=inside)
        tl.store(y_ptr + row * n_cols + columns, tl.exp(x - row_max) / row_sum, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, n_cols=x.shape[1], BLOCK=64, num_warps=1)
        return y
"""
)

GOOD = (
    _HEADER
    + """\
def softmax_kernel(x_ptr, y_ptr, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    # One pass finds each lane's maximum and its sum of exponentials together; a second one writes.
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    lane_max = tl.full((BLOCK,), -3.0e38, tl.float32)
    lane_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + row * n_cols + columns, mask=columns < n_cols, other=-3.0e38)
        new_max = tl.maximum(lane_max, x)
        lane_sum = lane_sum * tl.exp(lane_max - new_max) + tl.exp(x - new_max)
        lane_max = new_max
    row_max = tl.max(lane_max, axis=0)
    row_sum = tl.sum(lane_sum * tl.exp(lane_max - row_max), axis=0)
    for start in range(0, n_cols, BLOCK):
        columns = start + lanes
        inside = columns < n_cols
        x = tl.load(x_ptr + row * n_cols + columns, mask=inside)
        tl.store(y_ptr + row * n_cols + columns, tl.exp(x - row_max) / row_sum, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        block = min(triton.next_power_of_2(x.shape[1]), 8192)
        softmax_kernel[(x.shape[0],)](x, y, n_cols=x.shape[1], BLOCK=block, num_warps=16 if block >= 4096 else 4)
        return y
"""
)
