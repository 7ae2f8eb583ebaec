"""Linear x constant + LeakyReLU on tensor cores: wmma fragments in TF32, epilogue through shared memory."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void gemm(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, int M, int N, int K, float factor, float slope,
          uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gemm", &gemm); }
"""

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <mma.h>
using namespace nvcuda;

constexpr int BM = 64, BN = 64, BK = 16, WARPS = 4, PAD = 4;

// Each of four warps computes 32 x 32 of the block's 64 x 64 results. M and N are multiples of 64, K of 16.
__global__ void __launch_bounds__(WARPS * 32) gemm_kernel(
    const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* __restrict__ y,
    int M, int N, int K, float factor, float slope) {
  __shared__ __align__(128) float xs[BM][BK + PAD];
  __shared__ __align__(128) float ws[BN][BK + PAD];
  __shared__ __align__(128) float out[BM][BN + PAD];
  const int warp = threadIdx.x / 32, wm = warp / 2 * 32, wn = warp % 2 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> acc[2][2];
  for (auto& row : acc)
    for (auto& tile : row) wmma::fill_fragment(tile, 0.0f);
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += WARPS * 32) {
      xs[i / BK][i % BK] = x[(blockIdx.y * BM + i / BK) * K + k0 + i % BK];
      ws[i / BK][i % BK] = w[(blockIdx.x * BN + i / BK) * K + k0 + i % BK];
    }
    __syncthreads();
    for (int k = 0; k < BK; k += 8) {
      wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b[2];
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(a[i], &xs[wm + 16 * i][k], BK + PAD);
        wmma::load_matrix_sync(b[i], &ws[wn + 16 * i][k], BK + PAD);
        for (int e = 0; e < a[i].num_elements; ++e) a[i].x[e] = wmma::__float_to_tf32(a[i].x[e]);
        for (int e = 0; e < b[i].num_elements; ++e) b[i].x[e] = wmma::__float_to_tf32(b[i].x[e]);
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j)
      wmma::store_matrix_sync(&out[wm + 16 * i][wn + 16 * j], acc[i][j], BN + PAD, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < BM * BN; i += WARPS * 32) {
    const int col = blockIdx.x * BN + i % BN;
    const float v = (out[i / BN][i % BN] + bias[col]) * factor;
    y[(blockIdx.y * BM + i / BN) * N + col] = v >= 0.0f ? v : slope * v;
  }
}

void gemm(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, int M, int N, int K, float factor, float slope,
          uintptr_t stream) {
  gemm_kernel<<<dim3(N / BN, M / BM), WARPS * 32, 0, (cudaStream_t)stream>>>(
      (const float*)x, (const float*)w, (const float*)bias, (float*)y, M, N, K, factor, slope);
}
"""

extension = load_inline(name="wmma_linear", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, multiplier, negative_slope):
        super().__init__()
        if in_features % 16 or out_features % 64:
            raise ValueError("written for multiples of the tile")
        self.gemm = nn.Linear(in_features, out_features)
        self.multiplier = multiplier
        self.negative_slope = negative_slope

    def forward(self, x):
        m, k = x.shape
        n = self.gemm.out_features
        assert m % 64 == 0
        x = x.contiguous()
        y = torch.empty((m, n), device=x.device, dtype=x.dtype)
        extension.gemm(
            x.data_ptr(), self.gemm.weight.data_ptr(), self.gemm.bias.data_ptr(), y.data_ptr(),
            m, n, k, self.multiplier, self.negative_slope, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        return y
