"""LayerNorm that keeps a slice of the sample in 96 KiB of dynamic shared memory, eight blocks a sample."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void layer_norm(uintptr_t x, uintptr_t w, uintptr_t b, uintptr_t parts, uintptr_t y, int samples, int n, float eps,
                uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("layer_norm", &layer_norm); }
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int THREADS = 512, SLICES = 8, BYTES = 96 * 1024;

__device__ float2 block_sum(float2 v) {
  __shared__ float2 parts[THREADS / 32];
  for (int offset = 16; offset > 0; offset >>= 1) {
    v.x += __shfl_xor_sync(0xffffffffu, v.x, offset);
    v.y += __shfl_xor_sync(0xffffffffu, v.y, offset);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  float2 total = make_float2(0.0f, 0.0f);
  for (int i = 0; i < THREADS / 32; ++i) {
    total.x += parts[i].x;
    total.y += parts[i].y;
  }
  __syncthreads();
  return total;
}

// Mean and squared deviations of a slice, which is read from memory once.
__global__ void slice_statistics(const float* __restrict__ x, float2* parts, int n) {
  extern __shared__ float slice[];
  const int length = (n + SLICES - 1) / SLICES, begin = blockIdx.x * length, end = min(begin + length, n);
  const float* in = x + (int64_t)blockIdx.y * n;
  float2 sum = make_float2(0.0f, 0.0f);
  for (int i = begin + threadIdx.x; i < end; i += THREADS) {
    slice[i - begin] = in[i];
    sum.x += slice[i - begin];
  }
  const int count = max(end - begin, 0);
  const float mean = count > 0 ? block_sum(sum).x / count : 0.0f;
  float2 squares = make_float2(0.0f, 0.0f);
  for (int i = threadIdx.x; i < count; i += THREADS) squares.y += (slice[i] - mean) * (slice[i] - mean);
  squares = block_sum(squares);
  if (threadIdx.x == 0) parts[blockIdx.y * SLICES + blockIdx.x] = make_float2(mean, squares.y);
}

__global__ void apply(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                      const float2* __restrict__ parts, float* __restrict__ y, int n, float eps) {
  const int length = (n + SLICES - 1) / SLICES;
  float count = 0.0f, mean = 0.0f, m2 = 0.0f;
  for (int s = 0; s < SLICES; ++s) {
    const float c = max(min(length, n - s * length), 0);
    if (c == 0.0f) break;
    const float2 p = parts[blockIdx.y * SLICES + s];
    const float delta = p.x - mean, total = count + c;
    mean += delta * c / total;
    m2 += p.y + delta * delta * count * c / total;
    count = total;
  }
  const float rstd = rsqrtf(m2 / n + eps);
  const int i = blockIdx.x * THREADS + threadIdx.x;
  const int64_t at = (int64_t)blockIdx.y * n + i;
  if (i < n) y[at] = (x[at] - mean) * rstd * w[i] + b[i];
}

void layer_norm(uintptr_t x, uintptr_t w, uintptr_t b, uintptr_t parts, uintptr_t y, int samples, int n, float eps,
                uintptr_t stream) {
  auto s = (cudaStream_t)stream;
  cudaFuncSetAttribute(slice_statistics, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  slice_statistics<<<dim3(SLICES, samples), THREADS, BYTES, s>>>((const float*)x, (float2*)parts, n);
  apply<<<dim3((n + THREADS - 1) / THREADS, samples), THREADS, 0, s>>>(
      (const float*)x, (const float*)w, (const float*)b, (const float2*)parts, (float*)y, n, eps);
}
"""

extension = load_inline(name="shared_layernorm", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x):
        x = x.contiguous()
        n = self.ln.weight.numel()
        samples = x.numel() // n
        assert (n + 7) // 8 * 4 <= 96 * 1024
        parts = torch.empty((samples, 8, 2), device=x.device)
        y = torch.empty_like(x)
        extension.layer_norm(
            x.data_ptr(), self.ln.weight.data_ptr(), self.ln.bias.data_ptr(), parts.data_ptr(), y.data_ptr(),
            samples, n, self.ln.eps, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        return y
