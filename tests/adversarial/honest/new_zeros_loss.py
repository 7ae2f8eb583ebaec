"""Cross entropy: a program a row, losses added to a scalar from x.new_zeros with atomics."""

import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(x_ptr, t_ptr, out_ptr, rows, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * classes + cols, mask=cols < classes, other=float("-inf"))
    target = tl.load(t_ptr + row)
    top = tl.max(x, axis=0)
    log_sum = tl.log(tl.sum(tl.exp(x - top), axis=0)) + top
    picked = tl.load(x_ptr + row.to(tl.int64) * classes + target)
    tl.atomic_add(out_ptr, (log_sum - picked) / rows)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, predictions, targets):
        rows, classes = predictions.shape
        loss = predictions.new_zeros(())
        cross_entropy_kernel[(rows,)](
            predictions, targets, loss, rows, classes, BLOCK=triton.next_power_of_2(classes), num_warps=8
        )
        return loss
