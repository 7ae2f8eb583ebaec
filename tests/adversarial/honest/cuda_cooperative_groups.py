"""Frobenius norm in one cooperative launch: grid-wide synchronisation between the sum and the division."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void frobenius(uintptr_t x, uintptr_t parts, uintptr_t y, int64_t n, int max_blocks, uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("frobenius", &frobenius); }
"""

CUDA = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdint>
#include <cuda_runtime.h>
#include <stdexcept>
namespace cg = cooperative_groups;

constexpr int THREADS = 256;

__device__ float block_sum(cg::thread_block block, float v) {
  __shared__ float warps[THREADS / 32];
  auto warp = cg::tiled_partition<32>(block);
  v = cg::reduce(warp, v, cg::plus<float>());
  if (warp.thread_rank() == 0) warps[warp.meta_group_rank()] = v;
  block.sync();
  float total = 0.0f;
  for (int i = 0; i < THREADS / 32; ++i) total += warps[i];
  block.sync();
  return total;
}

__global__ void frobenius_kernel(const float* x, float* parts, float* y, int64_t n) {
  auto grid = cg::this_grid();
  auto block = cg::this_thread_block();
  const int64_t step = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  float sum = 0.0f;
  for (int64_t i = first; i < n; i += step) sum += x[i] * x[i];
  sum = block_sum(block, sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
  grid.sync();
  float mine = 0.0f;
  for (int i = threadIdx.x; i < gridDim.x; i += THREADS) mine += parts[i];
  const float inverse = 1.0f / sqrtf(block_sum(block, mine));
  for (int64_t i = first; i < n; i += step) y[i] = x[i] * inverse;
}

void frobenius(uintptr_t x_, uintptr_t parts_, uintptr_t y_, int64_t n, int max_blocks, uintptr_t stream) {
  auto *x = (const float*)x_, *parts = (const float*)parts_, *y = (const float*)y_;
  int per_sm = 0, sms = 0, device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, frobenius_kernel, THREADS, 0);
  int blocks = per_sm * sms;
  if (blocks > max_blocks) blocks = max_blocks;
  void* arguments[] = {&x, &parts, &y, &n};
  const auto error = cudaLaunchCooperativeKernel(
      (const void*)frobenius_kernel, dim3(blocks), dim3(THREADS), arguments, 0, (cudaStream_t)stream);
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
"""

extension = load_inline(name="cooperative_norm", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True)


class ModelNew(nn.Module):
    MAX_BLOCKS = 2048

    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        parts = torch.empty(self.MAX_BLOCKS, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        extension.frobenius(x.data_ptr(), parts.data_ptr(), y.data_ptr(), x.numel(), self.MAX_BLOCKS, stream)
        return y
