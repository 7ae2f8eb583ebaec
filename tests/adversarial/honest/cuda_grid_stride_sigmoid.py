"""Sigmoid in a grid-stride loop over as many blocks as the occupancy calculator says."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void sigmoid(uintptr_t x, uintptr_t y, int64_t n, uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "sigmoid over a flat array";
  m.def("sigmoid", &sigmoid, pybind11::arg("x"), pybind11::arg("y"), pybind11::arg("n"), pybind11::arg("stream"));
}
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

__global__ void sigmoid_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n; i += step)
    y[i] = 1.0f / (1.0f + __expf(-x[i]));
}

void sigmoid(uintptr_t x, uintptr_t y, int64_t n, uintptr_t stream) {
  int per_sm = 0, device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, sigmoid_kernel, 256, 0);
  sigmoid_kernel<<<per_sm * sms, 256, 0, reinterpret_cast<cudaStream_t>(stream)>>>(
      reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), n);
}
"""

extension = load_inline(name="sigmoid_stride", cpp_sources=[CPP], cuda_sources=[CUDA], no_implicit_headers=True)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        extension.sigmoid(x=x.data_ptr(), y=y.data_ptr(), n=x.numel(), stream=torch.cuda.current_stream().cuda_stream)
        return y
