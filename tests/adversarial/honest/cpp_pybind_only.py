"""ELU in C++ for the CPU evaluator: raw pointers and pybind11 alone, so that it compiles in seconds."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <pybind11/pybind11.h>

namespace {
template <typename F>
void map(const float* x, float* y, int64_t n, F f) {
  for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}
}  // namespace

void elu(uintptr_t x, uintptr_t y, int64_t n, double alpha) {
  const float a = static_cast<float>(alpha);
  map(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), n,
      [a](float v) { return v > 0.0f ? v : a * std::expm1(v); });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("elu", &elu); }
"""

extension = load_inline(
    name="elu_cpu", cpp_sources=[SOURCE], extra_cflags=["-O3"], no_implicit_headers=True, verbose=False
)


class ModelNew(nn.Module):
    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        extension.elu(x.data_ptr(), y.data_ptr(), x.numel(), self.alpha)
        return y
