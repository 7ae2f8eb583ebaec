"""LayerNorm in one kernel a sample, with a self-test that runs only as a script."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + base + offs, mask=offs < n, other=0.0)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        d = tl.where(offs < n, tl.load(x_ptr + base + offs, mask=offs < n, other=0.0) - mean, 0.0)
        squares += d * d
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + base + offs, mask=mask)
        y = (x - mean) * rstd * tl.load(w_ptr + offs, mask=mask) + tl.load(b_ptr + offs, mask=mask)
        tl.store(y_ptr + base + offs, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x):
        y = torch.empty_like(x)
        n = self.ln.weight.numel()
        layer_norm_kernel[(x.numel() // n,)](
            x, self.ln.weight, self.ln.bias, y, n, self.ln.eps, BLOCK=4096, num_warps=16
        )
        return y


def self_test():
    model = ModelNew((8, 16, 16)).cuda()
    x = torch.randn(4, 8, 16, 16, device="cuda")
    expected = torch.nn.functional.layer_norm(x, (8, 16, 16), model.ln.weight, model.ln.bias)
    error = (model(x) - expected).abs().max().item()
    print("max error", error)
    assert torch.allclose(model(x), expected, atol=1e-4)


if __name__ == "__main__":
    torch.manual_seed(0)
    self_test()
