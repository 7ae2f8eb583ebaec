"""LayerNorm over a whole sample: block means and variances merged by Welford's rule, then a second pass."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def welford_kernel(x_ptr, mean_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    count = 0.0
    mean = 0.0
    m2 = 0.0
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + sample * n + offs, mask=mask, other=0.0)
        block_count = tl.minimum(n - start, BLOCK) * 1.0
        block_mean = tl.sum(x, axis=0) / block_count
        centred = tl.where(mask, x - block_mean, 0.0)
        block_m2 = tl.sum(centred * centred, axis=0)
        delta = block_mean - mean
        total = count + block_count
        mean += delta * block_count / total
        m2 += block_m2 + delta * delta * count * block_count / total
        count = total
    tl.store(mean_ptr + sample, mean)
    tl.store(rstd_ptr + sample, 1.0 / tl.sqrt(m2 / n + eps))


@triton.jit
def apply_kernel(x_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + sample * n + offs, mask=mask)
    w = tl.load(w_ptr + offs, mask=mask)
    b = tl.load(b_ptr + offs, mask=mask)
    y = (x - tl.load(mean_ptr + sample)) * tl.load(rstd_ptr + sample) * w + b
    tl.store(y_ptr + sample * n + offs, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        samples = x.shape[0]
        n = x.numel() // samples
        mean = torch.empty(samples, dtype=torch.float32, device=x.device)
        rstd = torch.empty(samples, dtype=torch.float32, device=x.device)
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        welford_kernel[(samples,)](x, mean, rstd, n, self.ln.eps, BLOCK=4096, num_warps=8)
        apply_kernel[(samples, triton.cdiv(n, 4096))](
            x, mean, rstd, self.ln.weight, self.ln.bias, y, n, BLOCK=4096, num_warps=8
        )
        return y
