"""Average pooling that logs its shapes, warns, and prints a line on the first call."""

import logging
import sys
import time
import warnings

import torch
import torch.nn as nn
import triton
import triton.language as tl

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
log = logging.getLogger("avg_pool")


@triton.jit
def avg_pool_kernel(x_ptr, y_ptr, length, out_length, stride, padding, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    out = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for w in tl.static_range(WINDOW):
        pos = out * stride - padding + w
        acc += tl.load(x_ptr + row * length + pos, mask=(pos >= 0) & (pos < length), other=0.0)
    tl.store(y_ptr + row * out_length + out, acc / WINDOW, mask=out < out_length)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int = 1, padding: int = 0):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self._announced = False
        warnings.warn("written for contiguous inputs", stacklevel=2)

    def forward(self, x):
        started = time.perf_counter()
        batch, channels, length = x.shape
        out_length = (length + 2 * self.padding - self.kernel_size) // self.stride + 1
        y = torch.empty((batch, channels, out_length), device=x.device, dtype=x.dtype)
        avg_pool_kernel[(triton.cdiv(out_length, 1024), batch * channels)](
            x, y, length, out_length, self.stride, self.padding, WINDOW=self.kernel_size, BLOCK=1024
        )
        if not self._announced:
            self._announced = True
            print(f"avg_pool: {tuple(x.shape)} -> {tuple(y.shape)}", flush=True)
            log.info("first launch took %.3f ms", (time.perf_counter() - started) * 1e3)
        return y
