"""RMSNorm of the two halves of the batch on two streams, joined with wait_stream before forward returns."""

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
    scale = tl.rsqrt(acc / features + eps)
    for f in range(features):
        x = tl.load(x_ptr + base + f * inner + pos, mask=mask, other=0.0)
        tl.store(y_ptr + base + f * inner + pos, x * scale, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.side = torch.cuda.Stream()

    def _norm(self, x, y):
        if x.shape[0]:
            inner = x.shape[2] * x.shape[3]
            rms_kernel[(triton.cdiv(inner, 256), x.shape[0])](x, y, x.shape[1], inner, self.eps, BLOCK=256)

    def forward(self, x):
        y = torch.empty_like(x)
        half = x.shape[0] // 2
        current = torch.cuda.current_stream()
        self.side.wait_stream(current)
        with torch.cuda.stream(self.side):
            self._norm(x[:half], y[:half])
        self._norm(x[half:], y[half:])
        current.wait_stream(self.side)
        x.record_stream(self.side)
        y.record_stream(self.side)
        return y
