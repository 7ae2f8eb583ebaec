"""Mean over a dimension under @torch.no_grad(); the launcher is a staticmethod."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, y_ptr, length, width, BLOCK: tl.constexpr):
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(0)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    ptr = x_ptr + batch * length * width + cols
    for _ in range(length):
        acc += tl.load(ptr, mask=cols < width, other=0.0)
        ptr += width
    tl.store(y_ptr + batch * width + cols, acc / length, mask=cols < width)


class ModelNew(nn.Module):
    def __init__(self, dim: int = 1):
        super().__init__()
        self.dim = dim

    @staticmethod
    def _launch(x: torch.Tensor, y: torch.Tensor) -> None:
        batch, length, width = x.shape
        mean_kernel[(batch, triton.cdiv(width, 128))](x, y, length, width, BLOCK=128)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.size(0), x.size(2), dtype=x.dtype, device=x.device)
        self._launch(x.detach().contiguous(), y)
        return y
