"""ReLU. This text names what the checks look for: exec(), eval(), os.system, torch.compile, ctypes, subprocess.

y = torch.relu(x)        # the reference
torch.cuda.synchronize = lambda: None   # an old trick; not here
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

# Do not monkeypatch time.perf_counter, torch.cuda.Event.elapsed_time or sys.modules["__main__"].
# F.relu, x @ w and torch.matmul would fall back to cuBLAS: never do that. import pickle; __import__("os")
NOTE = "torch.nn.functional.relu(x) and cublasSgemm are only named in this string; so is inspect.currentframe()."


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    # torch.relu(x_ptr) would be wrong here; os._exit(0) too
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, tl.maximum(x, 0.0), mask=offs < n)


class ModelNew(nn.Module):
    """Replaces `Model`, whose forward is `return torch.relu(x)`."""

    def forward(self, x):
        """Same as torch.relu(x), F.relu(x) or x.clamp(min=0)."""
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
