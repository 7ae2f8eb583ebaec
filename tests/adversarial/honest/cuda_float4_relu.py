"""ReLU with float4 loads; bound with pybind11 alone and given raw pointers and the current stream's handle."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void relu(uintptr_t x, uintptr_t y, int64_t n, uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("relu", &relu); }
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

__global__ void relu_vec4(const float4* __restrict__ x, float4* __restrict__ y, int64_t n4) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n4) return;
  float4 v = __ldg(x + i);
  v.x = fmaxf(v.x, 0.0f);
  v.y = fmaxf(v.y, 0.0f);
  v.z = fmaxf(v.z, 0.0f);
  v.w = fmaxf(v.w, 0.0f);
  y[i] = v;
}

__global__ void relu_tail(const float* __restrict__ x, float* __restrict__ y, int64_t begin, int64_t n) {
  const int64_t i = begin + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.0f);
}

void relu(uintptr_t x, uintptr_t y, int64_t n, uintptr_t stream) {
  auto s = reinterpret_cast<cudaStream_t>(stream);
  const int64_t n4 = n / 4;
  if (n4 > 0)
    relu_vec4<<<static_cast<unsigned>((n4 + 255) / 256), 256, 0, s>>>(
        reinterpret_cast<const float4*>(x), reinterpret_cast<float4*>(y), n4);
  if (n % 4 != 0)
    relu_tail<<<1, 4, 0, s>>>(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), n4 * 4, n);
}
"""

extension = load_inline(
    name="relu_float4",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        extension.relu(x.data_ptr(), y.data_ptr(), x.numel(), torch.cuda.current_stream().cuda_stream)
        return y
