"""RMSNorm that computes in channels-last order and returns a permuted view of that dense result."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_kernel(x_ptr, out_ptr, features, inner, eps, BLOCK_P: tl.constexpr, BLOCK_F: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    feat = tl.arange(0, BLOCK_F)
    mask = (feat[:, None] < features) & (pos[None, :] < inner)
    base = batch * features * inner
    x = tl.load(x_ptr + base + feat[:, None] * inner + pos[None, :], mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / features + eps)
    y = x * scale[None, :]
    tl.store(out_ptr + base + pos[None, :] * features + feat[:, None], y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, f, d1, d2 = x.shape
        x = x.contiguous()
        out = torch.empty((b, d1, d2, f), device=x.device, dtype=x.dtype)
        inner = d1 * d2
        rms_kernel[(triton.cdiv(inner, 128), b)](
            x, out, f, inner, self.eps, BLOCK_P=128, BLOCK_F=triton.next_power_of_2(f)
        )
        return out.permute(0, 3, 1, 2)
