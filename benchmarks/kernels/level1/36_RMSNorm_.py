"""RMSNorm over dimension 1 in Triton: a program holds all features of a strip of positions, so x is read once."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, y_ptr, features, inner, eps, BLOCK_F: tl.constexpr, BLOCK_P: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    feature = tl.arange(0, BLOCK_F)
    offs = (batch * features + feature[:, None]) * inner + pos[None, :]
    mask = (feature < features)[:, None] & (pos < inner)[None, :]
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    squares = x * x
    rms = tl.sqrt(tl.sum(squares, axis=0) / features + eps)
    tl.store(y_ptr + offs, x / rms[None, :], mask=mask)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        batch, features = x.shape[0], x.shape[1]
        inner = x.numel() // (batch * features)
        block_p = 128
        grid = (triton.cdiv(inner, block_p), batch)
        block_f = triton.next_power_of_2(features)
        rms_norm_kernel[grid](x, y, features, inner, self.eps, BLOCK_F=block_f, BLOCK_P=block_p, num_warps=8)
        return y
