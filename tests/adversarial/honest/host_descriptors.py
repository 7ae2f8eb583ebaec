"""Gemm + bias + ReLU with tensor descriptors made on the host."""

import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def gemm_kernel(x_desc, w_desc, bias_ptr, out_desc, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m0 = tl.program_id(0) * BM
    n0 = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = x_desc.load([m0, k])
        w = w_desc.load([n0, k])
        acc = tl.dot(x, w.T, acc)
    cols = n0 + tl.arange(0, BN)
    acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :]
    out_desc.store([m0, n0], tl.maximum(acc, 0.0))


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        m, k = x.shape
        n = self.gemm.out_features
        out = torch.empty((m, n), device=x.device, dtype=x.dtype)
        x_desc = TensorDescriptor.from_tensor(x, [64, 32])
        w_desc = TensorDescriptor.from_tensor(self.gemm.weight.detach(), [64, 32])
        out_desc = TensorDescriptor.from_tensor(out, [64, 64])
        gemm_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
            x_desc, w_desc, self.bias, out_desc, n, k, BM=64, BN=64, BK=32
        )
        return out
