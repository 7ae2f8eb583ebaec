"""Submissions in the styles that honest authors use. Every one must pass the static checks."""

from __future__ import annotations

KERNEL = """import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, tl.maximum(x, 0.0), mask=offs < n)

"""

PLAIN = (
    KERNEL
    + """
class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
        return y
"""
)

TRITON: dict[str, str] = {
    "plain": PLAIN,
    "autotune_and_heuristics": '''import torch
import triton as t
import triton.language as tl

@t.autotune(configs=[t.Config({"BLOCK": b}, num_warps=4) for b in (256, 1024)], key=["n"])
@t.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@t.jit
def k(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.exp(tl.load(x + offs, mask=offs < n)), mask=offs < n)

class ModelNew(torch.nn.Module):
    """Replaces torch.relu, exec() and torch.compile(model)."""
    def forward(self, x):
        y = torch.empty_like(x)
        grid = lambda meta: (t.cdiv(x.numel(), meta["BLOCK"]),)
        k[grid](x, y, x.numel())
        return y
''',
    "imported_jit_helper_function": """import torch
from triton import jit, cdiv
import triton.language as tl

@jit
def _dot(a, b): return tl.dot(a, b)

@jit(do_not_specialize=["n"])
def k(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o[:, None] * B + o[None, :])
    tl.store(y + o[:, None] * B + o[None, :], _dot(a, tl.trans(a)) @ a)

def product(x):
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    k[(cdiv(x.shape[0], 16),)](x, y, x.numel(), B=16)
    return y

class ModelNew(torch.nn.Module):
    def __init__(self, n: int = 16):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(n).abs().sum())
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(x)
""",
    "weights_of_a_linear_prepared_in_init": KERNEL
    + """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("packed", torch.matmul(self.fc.weight.detach().t(), torch.eye(m)))
        self.scale = F.softmax(torch.ones(4), dim=0).sum().item()

    def forward(self, x):
        w, b = self.fc.weight, self.fc.bias
        y = torch.empty(x.shape[0], w.shape[0], device=x.device)
        relu_kernel[(1,)](w, y, y.numel() * 2 + 1, BLOCK=1024)
        return self.drop(y.view(x.shape[0], -1))
""",
    "autograd_function_with_torch_backward": KERNEL
    + """
class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, torch.mul(grad, 0))

class ModelNew(nn.Module):
    def forward(self, x):
        return _Relu.apply(x)
""",
    "kernel_passed_as_argument": KERNEL
    + """
import functools

def launch(kernel, grid, *args, **kwargs):
    kernel[grid](*args, **kwargs)

run_relu = functools.partial(launch, relu_kernel)

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        run_relu((triton.cdiv(x.numel(), 256),), x, y, x.numel(), BLOCK=256)
        return y
""",
    "kernels_in_a_dictionary": KERNEL
    + """
KERNELS = {"relu": relu_kernel}

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.full_like(x, 0)
        KERNELS["relu"][(64,)](x, y, x.numel(), BLOCK=256)
        return y
""",
    "kernel_in_an_attribute": KERNEL
    + """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = relu_kernel
    def forward(self, x):
        y = torch.empty_strided(x.size(), x.stride(), device=x.device, dtype=x.dtype)
        self.kernel[(64,)](x, y, x.numel(), BLOCK=256)
        return y

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
    def forward(self, x):
        return self.blocks(x)
""",
    "launcher_variable_and_run": KERNEL
    + """
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        if x.numel() < 4096:
            relu_kernel.run(x, y, x.numel(), BLOCK=256, grid=(16,), warmup=False)
        else:
            launcher = relu_kernel[(64,)]
            launcher(x, y, x.numel(), BLOCK=256)
        return y
""",
    "jit_applied_by_hand": """import torch, triton, triton.language as tl

def _k(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o) * 2)

kernel = triton.autotune(configs=[triton.Config({"B": 64})], key=["n"])(triton.jit(_k))

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel())
        return y
""",
    "kernel_factory_and_closure": """import torch, triton
import triton.language as tl
from functools import lru_cache

@lru_cache(maxsize=None)
def make(op):
    @triton.jit
    def k(x, y, B: tl.constexpr):
        o = tl.arange(0, B)
        tl.store(y + o, tl.load(x + o))
    return k

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        make("copy")[(1,)](x, y, B=64)
        return y
""",
    "custom_op_registered": KERNEL
    + """
@torch.library.custom_op("mine::relu", mutates_args=())
def my_relu(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(relu_kernel)[(64,)](x, y, x.numel(), BLOCK=256)
    return y

@my_relu.register_fake
def _(x):
    return torch.relu(x)

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.ops.mine.relu(x)
""",
    "reference_kept_next_to_it": KERNEL
    + """
class Model(nn.Module):
    def forward(self, x): return torch.relu(x)

class Base(nn.Module):
    def forward(self, x): return self.run(x)

class ModelNew(Base):
    def run(self, x):
        out = torch.empty_like(x)
        for start in range(0, x.shape[0], 8):
            relu_kernel[(1,)](x[start], out[start], x[start].numel(), BLOCK=1024)
        return out

def get_inputs():
    return [torch.randn(16, 16).softmax(-1) @ torch.eye(16)]

if __name__ == "__main__":
    print(torch.allclose(Model()(*get_inputs()), ModelNew()(*get_inputs())))
""",
    "streams_events_exits_and_signals": KERNEL
    + """
import os, signal, sys, math, warnings

class ModelNew(nn.Module):
    def forward(self, x):
        try:
            y = torch.empty_like(x)
            with torch.cuda.stream(torch.cuda.Stream()):
                relu_kernel[(64,)](x, y, x.numel(), BLOCK=256)
        except RuntimeError as error:
            raise ValueError("bad shape") from error
        if y is None:
            os.kill(os.getpid(), signal.SIGSEGV)
            os._exit(0)
            sys.exit(1)
        while y is None:
            print("x" * 1000)
        return y
""",
    "names_that_look_like_torch": """import torch, triton
import triton.language as tl

class F:
    @staticmethod
    def relu(x):
        y = torch.empty_like(x)
        k[(1,)](x, y, B=64)
        return y

class ops:
    def __init__(self): self.time = None
    def softmax(self, x): return F.relu(x)
    def compile(self): return self
    def exec(self): return self

@triton.jit
def k(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    tl.store(y + o, tl.sum(v) + tl.exp(v).to(tl.float32))

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ops = ops().compile().exec()
        self.ops.time = 3
    def forward(self, x, matmul=None):
        B, H, W, torch_relu = 1, 2, 3, F.relu
        return ops().softmax(torch_relu(x)) if matmul is None else matmul(x)
""",
    "torch_only_where_there_is_no_gpu": PLAIN.replace(
        "        y = torch.empty_like(x)\n",
        """        if not x.is_cuda:
            return torch.relu(x)
        elif x.device.type == "cuda":
            y = torch.empty_like(x) if torch.cuda.is_available() else F.relu(x)
        else:
            y = x @ x
""",
    ),
    "comments_and_strings_of_every_trick": '''r"""class ModelNew: torch.compile(m); exec("x"); import ctypes"""
# import subprocess; torch.backends.cudnn.benchmark = True; x @ w
'''
    + PLAIN.replace("x = x.contiguous()", '"x @ w; torch.relu(x); F.softmax(x)"  # return torch.relu(x)'),
}

CUDA_SOURCE = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#define BLOCK 256
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2) relu_kernel(const T* __restrict__ x, T* y, int64_t n) {
  const char* text = "cublasSgemm(at::matmul(a.mm(b)))";  // torch::relu(x)
  int i = blockIdx.x * N + threadIdx.x;
  if (i < n) y[i] = x[i] > T(0) ? x[i] : T(0);  /* cudnnConvolutionForward( */
}
#if 0
#include <cublas_v2.h>
at::Tensor slow(at::Tensor x) { return at::relu(x).mm(x); }
#endif
torch::Tensor relu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  auto big = 1'000'000 << 2;
  relu_kernel<float, BLOCK><<<(x.numel() + 255) / 256, BLOCK, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""


def cuda(sources: str, before: str = "", load: str = "load_inline") -> str:
    """A submission around the arguments of load_inline."""
    return f"""import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline
{before}
ext = {load}("ext", {sources}, functions=["relu"], verbose=False)

class ModelNew(nn.Module):
    def forward(self, x):
        return ext.relu(x)
"""


_DECLARATION = 'cpp_sources="torch::Tensor relu(torch::Tensor x);"'

CUDA: dict[str, str] = {
    "raw_string": cuda(f"{_DECLARATION}, cuda_sources=SOURCE", f'SOURCE = r"""{CUDA_SOURCE}"""'),
    "lists_and_positional": cuda('["torch::Tensor relu(torch::Tensor);"], [SOURCE]', f'SOURCE = r"""{CUDA_SOURCE}"""'),
    "alias": cuda(f'{_DECLARATION}, cuda_sources=[r"""{CUDA_SOURCE}"""]', load="li").replace(
        "import load_inline", "import load_inline as li"
    ),
    "cpp_extension_module": cuda(f'{_DECLARATION}, cuda_sources=r"""{CUDA_SOURCE}"""', load="cpp.load_inline").replace(
        "from torch.utils.cpp_extension import load_inline", "import torch.utils.cpp_extension as cpp"
    ),
    "f_string_and_concatenation": cuda(
        f"{_DECLARATION}, cuda_sources=HEAD + BODY",
        'BLOCK = 256\nHEAD = "#include <torch/extension.h>\\n" "#define B 1\\n"\nBODY = "\\n".join([HEAD, f"""\n'
        "__global__ void k(float* x) {{ x[threadIdx.x] = {BLOCK}; }}\n"
        'void relu(torch::Tensor x) {{ k<<<1, {BLOCK}>>>(x.data_ptr<float>()); }}"""])',
    ),
    "unresolvable_source": cuda(
        "cpp_sources=make('relu'), cuda_sources=make('kernel')",
        "def make(name):\n    return TEMPLATE.format(name=name) % 3\nTEMPLATE = 'void {name}() {{}}'",
    ),
    "options_in_a_dictionary": cuda("**OPTIONS", "OPTIONS = dict(cuda_sources='...')"),
    "inside_a_cached_function": f'''import torch
from functools import lru_cache
from torch.utils import cpp_extension

@lru_cache(None)
def extension():
    source = r"""{CUDA_SOURCE}"""
    return cpp_extension.load_inline("e", cpp_sources="", cuda_sources=source.strip(), functions=["relu"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension().relu(x)
''',
    "launch_through_the_runtime": cuda(
        f'{_DECLARATION}, cuda_sources=r"""\n'
        '__global__ void k(float* x, int n);\nextern "C" __global__ void k(float* x, int n) { x[0] = n; }\n'
        'void relu(torch::Tensor x) { void* a[] = {}; cudaLaunchKernel((void*)k, 1, 1, a, 0, nullptr); }"""'
    ),
    "macros": cuda(
        f'{_DECLARATION}, cuda_sources=r"""\n#define KERNEL(name) \\\n  __global__ void name(float* x)\n'
        "#define LAUNCH(k, ...) k<<<__VA_ARGS__>>>\n#define CHECK_CUBLAS(x) cublasSgemm(x)\n"
        "KERNEL(k) { x[0] = 1; }\nstruct Op { __device__ float sigmoid(float v) { return v; } };\n"
        "__device__ float f(Op op) { return op.sigmoid(1.f) + ::exp(2.f) + std::max(1, 2); }\n"
        'void relu(torch::Tensor x) { LAUNCH(k, 1, 1)(x.data_ptr<float>()); }"""'
    ),
}

CPU: dict[str, str] = {
    "cpp_sources": cuda(
        'cpp_sources=r"""#include <torch/extension.h>\n#include <ATen/Parallel.h>\n'
        "torch::Tensor relu(torch::Tensor x) {\n  auto y = torch::empty_like(x);\n"
        "  at::parallel_for(0, x.numel(), 1, [&](int64_t b, int64_t e) {\n"
        "    for (int64_t i = b; i < e; ++i) y.data_ptr<float>()[i] = std::max(0.f, x.data_ptr<float>()[i]);\n  });\n"
        '  return y;\n}"""'
    ),
    "unresolvable": cuda('cpp_sources=open("x.cpp").read()'),
}
