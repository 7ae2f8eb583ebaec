"""Sum over the middle dimension in CUDA through load_inline.

A block is 32 columns wide and 8 rows deep: each warp adds up every eighth row, and the eight partial sums of a column
meet in shared memory. Rows are 4095 long, so only every fourth one is aligned for wider loads; eight loads in flight a
thread hide the latency instead.
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP_SOURCE = "torch::Tensor column_sum_forward(torch::Tensor x);"

CUDA_SOURCE = r"""
#include <c10/cuda/CUDAStream.h>

constexpr int COLS = 32;
constexpr int DEPTH = 8;

__global__ void column_sum_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    __shared__ float partial[DEPTH][COLS];
    const int col = blockIdx.x * COLS + threadIdx.x;
    const long long batch = blockIdx.y;
    float sum = 0.0f;
    if (col < cols) {
        const float* column = x + batch * rows * cols + col;
        const int last = rows;
#pragma unroll 8
        for (int row = threadIdx.y; row < last; row += DEPTH) sum += column[(long long)row * cols];
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < cols) {
        float total = 0.0f;
        for (int i = 0; i < DEPTH; ++i) total += partial[i][threadIdx.x];
        y[batch * cols + col] = total;
    }
}

torch::Tensor column_sum_forward(torch::Tensor x) {
    const int rows = (int)x.size(1);
    const int cols = (int)x.size(2);
    auto y = torch::empty({x.size(0), 1, x.size(2)}, x.options());
    const dim3 grid((cols + COLS - 1) / COLS, (unsigned int)x.size(0));
    auto stream = c10::cuda::getCurrentCUDAStream();
    column_sum_kernel<<<grid, dim3(COLS, DEPTH), 0, stream.stream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), rows, cols);
    return y;
}
"""

extension = load_inline(
    name="column_sum_cuda",
    cpp_sources=CPP_SOURCE,
    cuda_sources=CUDA_SOURCE,
    functions=["column_sum_forward"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim != 1:
            raise ValueError("this kernel sums a 3-dimensional tensor over dimension 1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.column_sum_forward(x.contiguous())
