"""Sum over the middle dimension in CUDA through load_inline, with pybind11's headers alone: it compiles in seconds.

A block is 32 columns wide and 8 rows deep: each warp adds up every eighth row, and the eight partial sums of a column
meet in shared memory. Rows are 4095 long, so only every fourth one is aligned for wider loads; eight loads in flight a
thread hide the latency instead.
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP_SOURCE = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void column_sum(uintptr_t x, uintptr_t y, int64_t batch, int rows, int cols, uintptr_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("column_sum", &column_sum); }
"""

CUDA_SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int COLS = 32;
constexpr int DEPTH = 8;

__global__ void column_sum_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    __shared__ float partial[DEPTH][COLS];
    const int col = blockIdx.x * COLS + threadIdx.x;
    const long long batch = blockIdx.y;
    float sum = 0.0f;
    if (col < cols) {
        const float* column = x + batch * rows * cols + col;
#pragma unroll 8
        for (int row = threadIdx.y; row < rows; row += DEPTH) sum += column[(long long)row * cols];
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < cols) {
        float total = 0.0f;
        for (int i = 0; i < DEPTH; ++i) total += partial[i][threadIdx.x];
        y[batch * cols + col] = total;
    }
}

void column_sum(uintptr_t x, uintptr_t y, int64_t batch, int rows, int cols, uintptr_t stream) {
    const dim3 grid((cols + COLS - 1) / COLS, (unsigned int)batch);
    column_sum_kernel<<<grid, dim3(COLS, DEPTH), 0, reinterpret_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), rows, cols);
}
"""

extension = load_inline(
    name="column_sum_cuda",
    cpp_sources=[CPP_SOURCE],
    cuda_sources=[CUDA_SOURCE],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim != 1:
            raise ValueError("this kernel sums a 3-dimensional tensor over dimension 1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, rows, cols = x.shape
        y = torch.empty((batch, 1, cols), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        extension.column_sum(x.data_ptr(), y.data_ptr(), batch, rows, cols, stream)
        return y
