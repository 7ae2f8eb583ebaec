"""RMSNorm through an own operator that writes into an output the caller allocated."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_kernel(x_ptr, y_ptr, features, inner, eps, BLOCK: tl.constexpr):
    base = tl.program_id(1).to(tl.int64) * features * inner
    pos = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pos < inner
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for f in range(features):
        x = tl.load(x_ptr + base + f * inner + pos, mask=mask, other=0.0)
        acc += x * x
    scale = 1.0 / tl.sqrt(acc / features + eps)
    for f in range(features):
        x = tl.load(x_ptr + base + f * inner + pos, mask=mask, other=0.0)
        tl.store(y_ptr + base + f * inner + pos, x * scale, mask=mask)


@torch.library.custom_op("rms_ops::rms_norm_out", mutates_args={"out"})
def rms_norm_out(x: torch.Tensor, out: torch.Tensor, eps: float) -> None:
    batch, features = x.shape[:2]
    inner = x.numel() // (batch * features)
    rms_kernel[(triton.cdiv(inner, 256), batch)](x, out, features, inner, eps, BLOCK=256)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        out = torch.empty_like(x)
        rms_norm_out(x, out, self.eps)
        return out
