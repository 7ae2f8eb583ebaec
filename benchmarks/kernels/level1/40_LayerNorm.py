"""LayerNorm over all but the first dimension in Triton.

Each program reduces one block of a sample to its mean and its sum of squared differences, a small kernel joins the
blocks of a sample (Chan, Golub and LeVeque 1983), and a third one normalises.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def block_moments_kernel(x_ptr, mean_ptr, m2_ptr, n, blocks, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    offs = block * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + sample * n + offs, mask=mask, other=0.0)
    count = tl.minimum(n - block * BLOCK, BLOCK).to(tl.float32)
    mean = tl.sum(x, axis=0) / count
    diff = tl.where(mask, x - mean, 0.0)
    tl.store(mean_ptr + sample * blocks + block, mean)
    tl.store(m2_ptr + sample * blocks + block, tl.sum(diff * diff, axis=0))


@triton.jit
def join_kernel(mean_ptr, m2_ptr, stats_ptr, n, blocks, eps, BLOCK: tl.constexpr, LANES: tl.constexpr):
    sample = tl.program_id(0)
    lane = tl.arange(0, LANES)
    mask = lane < blocks
    count = tl.where(mask, tl.minimum(n - lane * BLOCK, BLOCK), 0).to(tl.float32)
    means = tl.load(mean_ptr + sample * blocks + lane, mask=mask, other=0.0)
    m2 = tl.load(m2_ptr + sample * blocks + lane, mask=mask, other=0.0)
    mean = tl.sum(means * (count / n), axis=0)
    away = means - mean
    var = tl.sum(m2 + count * away * away, axis=0) / n
    tl.store(stats_ptr + 2 * sample, mean)
    tl.store(stats_ptr + 2 * sample + 1, 1.0 / tl.sqrt(var + eps))


@triton.jit
def normalize_kernel(x_ptr, w_ptr, b_ptr, stats_ptr, y_ptr, n, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    mean = tl.load(stats_ptr + 2 * sample)
    rstd = tl.load(stats_ptr + 2 * sample + 1)
    x = tl.load(x_ptr + sample * n + offs, mask=mask)
    w = tl.load(w_ptr + offs, mask=mask)
    b = tl.load(b_ptr + offs, mask=mask)
    tl.store(y_ptr + sample * n + offs, (x - mean) * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        n = self.ln.weight.numel()
        samples = x.numel() // n
        block = 8192
        blocks = triton.cdiv(n, block)
        mean = torch.empty((samples, blocks), device=x.device, dtype=torch.float32)
        m2 = torch.empty((samples, blocks), device=x.device, dtype=torch.float32)
        stats = torch.empty((samples, 2), device=x.device, dtype=torch.float32)
        block_moments_kernel[(blocks, samples)](x, mean, m2, n, blocks, BLOCK=block, num_warps=8)
        lanes = triton.next_power_of_2(blocks)
        join_kernel[(samples,)](mean, m2, stats, n, blocks, self.ln.eps, BLOCK=block, LANES=lanes)
        # Samples are the fast grid axis, so that one block of weight and bias serves all of them from the L2 cache.
        normalize_kernel[(samples, triton.cdiv(n, 4096))](
            x, self.ln.weight, self.ln.bias, stats, y, n, BLOCK=4096, num_warps=8
        )
        return y
