"""Max pooling with a 4x4 window and stride 1 in Triton.

A program walks down a strip of rows and keeps the horizontal maxima of the last three input rows in registers, so an
output row costs four loads instead of sixteen.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_max(plane_ptr, row, col, height, width):
    best = tl.full(col.shape, float("-inf"), tl.float32)
    for shift in tl.static_range(4):
        c = col + shift
        inside = (row >= 0) & (row < height) & (c >= 0) & (c < width)
        best = tl.maximum(best, tl.load(plane_ptr + row * width + c, mask=inside, other=float("-inf")))
    return best


@triton.jit
def max_pool_kernel(
    x_ptr,
    y_ptr,
    height,
    width,
    out_height,
    out_width,
    col_blocks,
    PADDING: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    first_row = (tl.program_id(0) // col_blocks) * ROWS
    out_col = (tl.program_id(0) % col_blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    col = out_col - PADDING
    x_plane = x_ptr + plane * height * width
    y_plane = y_ptr + plane * out_height * out_width
    row = first_row - PADDING
    r0 = row_max(x_plane, row, col, height, width)
    r1 = row_max(x_plane, row + 1, col, height, width)
    r2 = row_max(x_plane, row + 2, col, height, width)
    for i in range(0, ROWS):
        r3 = row_max(x_plane, row + i + 3, col, height, width)
        out_row = first_row + i
        best = tl.maximum(tl.maximum(r0, r1), tl.maximum(r2, r3))
        mask = (out_row < out_height) & (out_col < out_width)
        tl.store(y_plane + out_row * out_width + out_col, best, mask=mask)
        r0 = r1
        r1 = r2
        r2 = r3


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int) -> None:
        super().__init__()
        if (kernel_size, stride, dilation) != (4, 1, 1):
            raise ValueError("this kernel pools with a 4x4 window, stride 1 and dilation 1")
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, channels, height, width = x.shape
        out_height, out_width = height + 2 * self.padding - 3, width + 2 * self.padding - 3
        y = torch.empty((batch, channels, out_height, out_width), device=x.device, dtype=x.dtype)
        rows, block_c = 64, 256
        col_blocks = triton.cdiv(out_width, block_c)
        grid = (triton.cdiv(out_height, rows) * col_blocks, batch * channels)
        max_pool_kernel[grid](
            x,
            y,
            height,
            width,
            out_height,
            out_width,
            col_blocks,
            PADDING=self.padding,
            ROWS=rows,
            BLOCK_C=block_c,
            num_warps=4,
        )
        return y
