"""MLP recorded into a CUDA graph on the first call. Later calls copy the input in, replay and copy the output out."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, M, N, K,
    RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        w = tl.load(w_ptr + cols[None, :] * K + ks[:, None], mask=(cols[None, :] < N) & (ks[:, None] < K), other=0.0)
        acc = tl.dot(x, w, acc)
    acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0)
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, input_size, layer_sizes, output_size):
        super().__init__()
        layers = []
        width = input_size
        for hidden in layer_sizes:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        layers.append(nn.Linear(width, output_size))
        self.network = nn.Sequential(*layers)
        self.graph = None
        self.static_input = None
        self.static_output = None

    def _run(self, x):
        linears = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        for index, layer in enumerate(linears):
            m, n = x.shape[0], layer.out_features
            y = torch.empty((m, n), device=x.device, dtype=x.dtype)
            linear_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
                x, layer.weight, layer.bias, y, m, n, layer.in_features,
                RELU=index + 1 < len(linears), BM=64, BN=64, BK=32,
            )  # fmt: skip
            x = y
        return x

    def _capture(self, x):
        self.static_input = torch.empty_like(x)
        self.static_input.copy_(x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels must be compiled and loaded before the capture
            for _ in range(2):
                self._run(self.static_input)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.static_output = self._run(self.static_input)

    def forward(self, x):
        if self.graph is None:
            self._capture(x)
        self.static_input.copy_(x)
        self.graph.replay()
        return self.static_output.clone()
