"""Mean cross entropy in Triton: one program a row, then one program that averages the rows in a fixed order."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_loss_kernel(x_ptr, target_ptr, loss_ptr, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * classes + col, mask=col < classes, other=float("-inf"))
    top = tl.max(x, axis=0)
    log_sum = tl.log(tl.sum(tl.exp(x - top), axis=0)) + top
    picked = tl.load(x_ptr + row * classes + tl.load(target_ptr + row))
    tl.store(loss_ptr + row, log_sum - picked)


@triton.jit
def mean_kernel(loss_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    last = rows
    for start in range(0, last, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        acc += tl.load(loss_ptr + offs, mask=offs < last, other=0.0)
    tl.store(out_ptr, tl.sum(acc, axis=0) / rows)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x, targets = predictions.contiguous(), targets.contiguous()
        rows, classes = x.shape
        loss = torch.empty(rows, device=x.device, dtype=torch.float32)
        out = torch.empty((), device=x.device, dtype=torch.float32)
        row_loss_kernel[(rows,)](x, targets, loss, classes, BLOCK=triton.next_power_of_2(classes), num_warps=4)
        mean_kernel[(1,)](loss, out, rows, BLOCK=8192, num_warps=16)
        return out
