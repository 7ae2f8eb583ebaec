"""Matrix product with shared-memory tiles and 8 x 8 results a thread."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void matmul(uintptr_t a, uintptr_t b, uintptr_t c, int M, int N, int K, uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("matmul", &matmul); }
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int TILE = 128, DEPTH = 8, PER_THREAD = 8, THREADS = 256;

__global__ void __launch_bounds__(THREADS) matmul_kernel(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K) {
  __shared__ float as[DEPTH][TILE];
  __shared__ float bs[DEPTH][TILE];
  const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
  const int tr = threadIdx.x / 16 * PER_THREAD, tc = threadIdx.x % 16 * PER_THREAD;
  float acc[PER_THREAD][PER_THREAD] = {};
  for (int k0 = 0; k0 < K; k0 += DEPTH) {
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
      const int r = i / DEPTH, ka = i % DEPTH;
      as[ka][r] = (row0 + r < M && k0 + ka < K) ? a[(row0 + r) * K + k0 + ka] : 0.0f;
      const int kb = i / TILE, n = i % TILE;
      bs[kb][n] = (k0 + kb < K && col0 + n < N) ? b[(k0 + kb) * N + col0 + n] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      float ra[PER_THREAD], rb[PER_THREAD];
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
        ra[i] = as[k][tr + i];
        rb[i] = bs[k][tc + i];
      }
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) acc[i][j] = fmaf(ra[i], rb[j], acc[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < PER_THREAD; ++i)
    for (int j = 0; j < PER_THREAD; ++j)
      if (row0 + tr + i < M && col0 + tc + j < N) c[(row0 + tr + i) * N + col0 + tc + j] = acc[i][j];
}

void matmul(uintptr_t a, uintptr_t b, uintptr_t c, int M, int N, int K, uintptr_t stream) {
  const dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
  matmul_kernel<<<grid, THREADS, 0, reinterpret_cast<cudaStream_t>(stream)>>>(
      reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), reinterpret_cast<float*>(c), M, N, K);
}
"""

module = load_inline("shared_matmul", CPP, CUDA, no_implicit_headers=True, extra_cuda_cflags=["-O3", "--use_fast_math"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, A, B):
        A, B = A.contiguous(), B.contiguous()
        out = A.new_empty(A.shape[0], B.shape[1])
        stream = torch.cuda.current_stream(A.device)
        module.matmul(
            A.data_ptr(), B.data_ptr(), out.data_ptr(), A.shape[0], B.shape[1], A.shape[1], stream.cuda_stream
        )
        return out
