"""Average pooling as an operator that the extension registers with TORCH_LIBRARY and forward calls by torch.ops."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/library.h>
#include <ATen/Functions.h>
#include <c10/cuda/CUDAStream.h>

void launch_avg_pool(const float* x, float* y, int64_t rows, int length, int out_length, int window, int stride,
                     int padding, cudaStream_t stream);

at::Tensor avg_pool1d_cuda(const at::Tensor& x, int64_t window, int64_t stride, int64_t padding) {
  const auto input = x.contiguous();
  const int64_t length = input.size(2), out_length = (length + 2 * padding - window) / stride + 1;
  auto y = at::empty({input.size(0), input.size(1), out_length}, input.options());
  launch_avg_pool(input.data_ptr<float>(), y.data_ptr<float>(), input.size(0) * input.size(1), (int)length,
                  (int)out_length, (int)window, (int)stride, (int)padding, c10::cuda::getCurrentCUDAStream());
  return y;
}

TORCH_LIBRARY(honest_pool, m) { m.def("avg_pool1d(Tensor x, int window, int stride, int padding) -> Tensor"); }
TORCH_LIBRARY_IMPL(honest_pool, CUDA, m) { m.impl("avg_pool1d", avg_pool1d_cuda); }
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

__global__ void avg_pool_kernel(const float* __restrict__ x, float* __restrict__ y, int length, int out_length,
                                int window, int stride, int padding) {
  const int out = blockIdx.x * blockDim.x + threadIdx.x;
  if (out >= out_length) return;
  const float* row = x + (int64_t)blockIdx.y * length;
  float sum = 0.0f;
  for (int w = 0; w < window; ++w) {
    const int at = out * stride - padding + w;
    if (at >= 0 && at < length) sum += row[at];
  }
  y[(int64_t)blockIdx.y * out_length + out] = sum / window;
}

void launch_avg_pool(const float* x, float* y, int64_t rows, int length, int out_length, int window, int stride,
                     int padding, cudaStream_t stream) {
  const dim3 grid((out_length + 255) / 256, (unsigned)rows);
  avg_pool_kernel<<<grid, 256, 0, stream>>>(x, y, length, out_length, window, stride, padding);
}
"""

load_inline(
    name="honest_pool_ops", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True, is_python_module=False
)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int = 1, padding: int = 0):
        super().__init__()
        self.arguments = (kernel_size, stride, padding)

    def forward(self, x):
        return torch.ops.honest_pool.avg_pool1d(x, *self.arguments)
