"""RMS normalisation over dimension 1: a program holds all features of a few neighbouring positions, and reads once."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, out_ptr, features, inner, eps, BLOCK_F: tl.constexpr, BLOCK_I: tl.constexpr):
    tiles = tl.cdiv(inner, BLOCK_I)
    sample = tl.program_id(0) // tiles
    column = (tl.program_id(0) % tiles) * BLOCK_I + tl.arange(0, BLOCK_I)
    feature = tl.arange(0, BLOCK_F)
    offset = sample.to(tl.int64) * features * inner + feature[:, None] * inner + column[None, :]
    inside = (feature[:, None] < features) & (column[None, :] < inner)
    x = tl.load(x_ptr + offset, mask=inside, other=0.0)
    rms = tl.sqrt(tl.sum(x * x, axis=0) / features + eps)
    tl.store(out_ptr + offset, x / rms[None, :], mask=inside)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        samples, features = x.shape[:2]
        inner = x.numel() // (samples * features)
        out = torch.empty_like(x)
        block_f = triton.next_power_of_2(features)
        block_i = max(32, min(256, 8192 // block_f))
        grid = (samples * triton.cdiv(inner, block_i),)
        rms_norm_kernel[grid](x, out, features, inner, self.eps, BLOCK_F=block_f, BLOCK_I=block_i, num_warps=8)
        return out
