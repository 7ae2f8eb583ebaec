"""Mean squared error: block sums added to a zeroed double with atomicAdd, finished by a one-thread kernel."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void mse(uintptr_t p, uintptr_t t, uintptr_t total, uintptr_t out, int64_t n, uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("mse", &mse); }
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

__global__ void square_sum(const float* __restrict__ p, const float* __restrict__ t, double* total, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float d = p[i] - t[i];
    sum += d * d;
  }
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(total, static_cast<double>(sum));
}

__global__ void finish(const double* total, float* out, int64_t n) {
  *out = static_cast<float>(*total / static_cast<double>(n));
}

void mse(uintptr_t p, uintptr_t t, uintptr_t total, uintptr_t out, int64_t n, uintptr_t stream) {
  auto s = reinterpret_cast<cudaStream_t>(stream);
  auto* sum = reinterpret_cast<double*>(total);
  cudaMemsetAsync(sum, 0, sizeof(double), s);
  square_sum<<<1056, 256, 0, s>>>(reinterpret_cast<const float*>(p), reinterpret_cast<const float*>(t), sum, n);
  finish<<<1, 1, 0, s>>>(sum, reinterpret_cast<float*>(out), n);
}
"""

extension = load_inline(name="mse_atomics", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, dtype=torch.float64), persistent=False)

    def forward(self, predictions, targets):
        out = torch.empty((), device=predictions.device, dtype=predictions.dtype)
        extension.mse(
            predictions.contiguous().data_ptr(),
            targets.contiguous().data_ptr(),
            self.total.data_ptr(),
            out.data_ptr(),
            predictions.numel(),
            torch.cuda.current_stream().cuda_stream,
        )
        return out
