"""Submissions that the static checks must reject, each with its rule. `HERE` in a comment marks the line to name."""

from __future__ import annotations

from tests.static_honest import CUDA_SOURCE, KERNEL, PLAIN, cuda

LAUNCH = "y = torch.empty_like(x); relu_kernel[(64,)](x, y, x.numel(), BLOCK=256)"


def forward(*body: str, before: str = "", init: str = "pass") -> str:
    """A submission with a good kernel that is launched, and `body` in forward."""
    lines = "\n        ".join(line.replace("\n", "\n        ") for line in body)
    return f"""{KERNEL}
{before}
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, w):
        {LAUNCH}
        {lines}
        return y
"""


def top(*lines: str) -> str:
    """A good submission with more lines at module level."""
    return PLAIN + "\n".join(lines) + "\n"


NO_LAUNCH = PLAIN.replace("        relu_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)\n", "        LAUNCH\n")
NO_LAUNCH = NO_LAUNCH.replace("@triton.jit\ndef relu_kernel(", "@triton.jit\ndef relu_kernel(  # HERE\n    ")

# name -> (rule, source)
TRITON: dict[str, tuple[str, str]] = {
    "empty": ("empty", " \n\t\n"),
    "too_large": ("too_large", PLAIN + "#" * 1_000_001),
    "too_large_in_bytes": ("too_large", PLAIN + "#" + "\u00e9" * 600_000),
    "syntax": ("syntax", PLAIN + "def f(:  # HERE\n"),
    "null_byte": ("syntax", PLAIN + "x = '\0'  # HERE\n"),
    "surrogate": ("syntax", PLAIN + "x = '\ud800'  # HERE\n"),
    "nested": ("syntax", "x = " + "-" * 100_000 + "1"),
    "huge_literal": ("syntax", "x = " + "1" * 10_000 + "  # HERE"),
    "no_model": ("missing_model", PLAIN.replace("ModelNew", "NewModel")),
    "model_in_comment": (
        "missing_model",
        PLAIN.replace("class ModelNew(", "# class ModelNew(nn.Module):\nclass Other("),
    ),
    "model_in_string": (
        "missing_model",
        KERNEL + f"def f(x):\n    {LAUNCH}\nSOURCE = '''{PLAIN.replace(KERNEL, '')}'''",
    ),
    "model_inside_a_function": (
        "missing_model",
        KERNEL + f"def f(x):\n    {LAUNCH}\n    class ModelNew(nn.Module):\n        def forward(self): pass\n",
    ),
    "model_under_if_false": (
        "missing_model",
        KERNEL
        + f"def f(x):\n    {LAUNCH}\nif False:\n    class ModelNew(nn.Module):\n        def forward(self): pass\n",
    ),
    "model_is_a_call": ("missing_model", top("ModelNew = type('ModelNew', (nn.Module,), {})")),
    "no_forward": (
        "missing_forward",
        KERNEL + f"class ModelNew(nn.Module):  # HERE\n    def backward(self, x):\n        {LAUNCH}\n",
    ),
    "no_kernel": ("no_kernel", KERNEL.replace("@triton.jit\n", "") + PLAIN.replace(KERNEL, "")),
    "kernel_in_comment": ("no_kernel", PLAIN.replace("@triton.jit\n", "# @triton.jit\n")),
    "kernel_in_string": ("no_kernel", "'''@triton.jit'''\n" + PLAIN.replace("@triton.jit\n", "")),
    "other_jit": (
        "no_kernel",
        PLAIN.replace("@triton.jit\n", "@numba.jit\n").replace("import triton\n", "import numba\n"),
    ),
    "not_launched": ("kernel_not_launched", NO_LAUNCH.replace("        LAUNCH\n", "")),
    "launch_in_comment": ("kernel_not_launched", NO_LAUNCH.replace("LAUNCH", "# relu_kernel[(1,)](x, y)")),
    "launch_in_string": ("kernel_not_launched", NO_LAUNCH.replace("LAUNCH", "'relu_kernel[(1,)](x, y)'")),
    "only_warmup": ("kernel_not_launched", NO_LAUNCH.replace("LAUNCH", "relu_kernel.warmup(x, y, n, grid=(1,))")),
    "grid_without_call": ("kernel_not_launched", NO_LAUNCH.replace("LAUNCH", "relu_kernel[(1,)]")),
    "launch_of_something_else": (
        "kernel_not_launched",
        NO_LAUNCH.replace("LAUNCH", "fs = [print, relu_kernel]; fs[0](x)"),
    ),
    "launch_after_return": (
        "kernel_not_launched",
        NO_LAUNCH.replace("        LAUNCH\n", "").replace("return y", "return y\n        relu_kernel[(1,)](x, y, n)"),
    ),
    "launch_under_if_false": (
        "kernel_not_launched",
        NO_LAUNCH.replace("LAUNCH", "if 0:\n            relu_kernel[(1,)](x, y, n, BLOCK=1)"),
    ),
    "launched_only_by_itself": (
        "kernel_not_launched",
        NO_LAUNCH.replace("        LAUNCH\n", "").replace(
            "    offs =", "    relu_kernel[(1,)](x_ptr, y_ptr, n, BLOCK)\n    offs ="
        ),
    ),
    "cpp_extension": ("wrong_language", top("from torch.utils.cpp_extension import load_inline  # HERE")),
    "cpp_extension_by_attribute": (
        "wrong_language",
        top("import torch.utils", "ext = torch.utils.cpp_extension.load_inline('e', 'void f() {}')  # HERE"),
    ),
    # the reference
    "inherits_unknown_model": (
        "uses_reference",
        KERNEL + f"def f(x):\n    {LAUNCH}\nclass ModelNew(Model):  # HERE\n    pass\n",
    ),
    "inherits_copied_model": (
        "uses_reference",
        KERNEL
        + f"class Model(nn.Module):\n    def forward(self, x):\n        {LAUNCH}\n"
        + "class ModelNew(Model):  # HERE\n    pass\n",
    ),
    "holds_model": ("uses_reference", forward("y = self.ref(x)", init="self.ref = Model()  # HERE")),
    "imports_model": ("uses_reference", top("from reference import Model as M  # HERE")),
    "imports_kernelbench": ("uses_reference", top("import kernelbench.eval  # HERE")),
    "imports_judge": ("uses_reference", top("from server.worker import judge  # HERE")),
    # PyTorch's compilers
    "compile": ("torch_compile", forward("pass", init="self.f = torch.compile(nn.Linear(1, 1))  # HERE")),
    "compile_decorator": ("torch_compile", top("@torch.compile  # HERE", "def f(x): return x")),
    "compile_alias": ("torch_compile", top("from torch import compile as c  # HERE", "f = c(print)")),
    "inductor": ("torch_compile", top("from torch._inductor import config  # HERE")),
    "jit_script": ("torch_compile", top("@torch.jit.script  # HERE", "def f(x): return x")),
    # PyTorch does the work
    "matmul": ("torch_compute", forward("y = torch.matmul(x, w)  # HERE")),
    "matmul_operator": ("torch_compute", forward("y = x @ w  # HERE")),
    "matmul_operator_in_place": ("torch_compute", forward("y @= w  # HERE")),
    "operator_module": ("torch_compute", forward("import operator", "y = operator.matmul(x, w)  # HERE")),
    "functional": ("torch_compute", forward("y = F.softmax(x, dim=-1)  # HERE")),
    "functional_by_attribute": ("torch_compute", forward("y = nn.functional.layer_norm(x, (4,))  # HERE")),
    "function_alias": (
        "torch_compute",
        forward("y = act(x)  # HERE", before="from torch.nn.functional import gelu as act"),
    ),
    "assigned_alias": ("torch_compute", forward("y = product(x, w)  # HERE", before="t = torch\nproduct = t.einsum")),
    "getattr_of_pieces": ("torch_compute", forward("y = getattr(torch, 'mat' + 'mul')(x, w)  # HERE")),
    "dunder_import": ("torch_compute", forward("y = __import__('torch').relu(x)  # HERE")),
    "star_import": ("torch_compute", forward("y = bmm(x, w)  # HERE", before="from torch import *")),
    "aten": ("torch_compute", forward("y = torch.ops.aten.mm.default(x, w)  # HERE")),
    "linalg": ("torch_compute", forward("y = torch.linalg.norm(x)  # HERE")),
    "unbound_method": ("torch_compute", forward("y = torch.Tensor.__matmul__(x, w)  # HERE")),
    "tensor_method": ("torch_compute", forward("x = x.contiguous()", "y = x.view(-1).softmax(-1)  # HERE")),
    "method_of_allocation": ("torch_compute", forward("out = torch.empty(4)", "y = out.add_(x)  # HERE")),
    "passed_to_map": ("torch_compute", forward("y = list(map(torch.relu, [x]))[0]  # HERE")),
    "partial": ("torch_compute", forward("import functools", "y = functools.partial(torch.sum, x)()  # HERE")),
    "linear_layer": ("torch_compute", forward("y = self.fc(x)  # HERE", init="self.fc = nn.Linear(4, 4)")),
    "layer_forward": ("torch_compute", forward("y = self.c.forward(x)  # HERE", init="self.c = nn.Conv2d(1, 1, 1)")),
    "sequential": (
        "torch_compute",
        forward("y = self.net(x)  # HERE", init="self.net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU()))"),
    ),
    "layer_made_on_the_spot": ("torch_compute", forward("y = nn.Softmax(dim=1)(x)  # HERE")),
    "layer_subclass": (
        "torch_compute",
        forward("y = self.fc(x)  # HERE", before="class Mine(nn.Linear): pass", init="self.fc = Mine(4, 4)"),
    ),
    "super_forward": (
        "torch_compute",
        KERNEL
        + f"class ModelNew(nn.Linear):\n    def forward(self, x):\n        {LAUNCH}\n"
        + "        return super().forward(x)  # HERE\n",
    ),
    "function_in_attribute": ("torch_compute", forward("y = self.act(x)  # HERE", init="self.act = F.relu")),
    "helper_function": (
        "torch_compute",
        forward(
            "y = helper(x)",
            before="def helper(x):\n    return inner(x)\n\ndef inner(x):\n    return torch.relu(x)  # HERE",
        ),
    ),
    "helper_lambda": ("torch_compute", forward("y = helper(x)", before="helper = lambda x: x @ x  # HERE")),
    "helper_method": (
        "torch_compute",
        forward("y = self.helper(x)", "return y", "", before="")
        + "\n    def helper(self, x):\n        return torch.relu(x)  # HERE\n",
    ),
    "nested_module": (
        "torch_compute",
        forward(
            "y = self.block(x)",
            before="class Block(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)  # HERE",
            init="self.block = Block()",
        ),
    ),
    "autograd_function": (
        "torch_compute",
        forward(
            "y = Fn.apply(x)",
            before="class Fn(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        return torch.exp(x)  # HERE",
        ),
    ),
    "custom_op": (
        "torch_compute",
        forward(
            "y = torch.ops.mine.k(x)",
            before="@torch.library.custom_op('mine::k', mutates_args=())\n"
            "def anything(x):\n    return torch.exp(x)  # HERE",
        ),
    ),
    "lambda_inside_forward": ("torch_compute", forward("f = lambda t: torch.tanh(t)  # HERE", "y = f(x)")),
    "fallback": (
        "torch_fallback",
        forward("try:\n    relu_kernel[(1,)](x, y, 1)\nexcept Exception:\n    y = torch.relu(x)  # HERE"),
    ),
    "hash_in_a_string_hides_nothing": ("torch_compute", forward("s = '#'; y = torch.relu(x)  # HERE")),
    # reaching into the process
    "patch_torch": ("monkeypatch", top("torch.allclose = lambda *a, **k: True  # HERE")),
    "patch_alias": ("monkeypatch", top("E = torch.cuda.Event", "E.elapsed_time = lambda *a: 1e-3  # HERE")),
    "patch_class_method": ("monkeypatch", top("torch.Tensor.__eq__ = lambda *a: True  # HERE")),
    "patch_time": ("monkeypatch", top("import time", "time.perf_counter = lambda: 0.0  # HERE")),
    "patch_triton": ("monkeypatch", top("triton.testing.do_bench, x = None, 1  # HERE")),
    "patch_builtins": ("monkeypatch", top("import builtins as b", "b.print = None  # HERE")),
    "patch_setattr": ("monkeypatch", top("setattr(torch, 'allclose', None)  # HERE")),
    "patch_dict": ("monkeypatch", top("torch.__dict__['allclose'] = None  # HERE")),
    "patch_delete": ("monkeypatch", top("del torch.allclose  # HERE")),
    "patch_modules": ("monkeypatch", top("import sys", "sys.modules['torch'] = None  # HERE")),
    "patch_modules_by_method": ("monkeypatch", top("from sys import modules", "modules.update(torch=None)  # HERE")),
    "patch_mock": ("monkeypatch", top("from unittest.mock import patch  # HERE")),
    "tf32": ("global_flags", top("torch.backends.cuda.matmul.allow_tf32 = True  # HERE")),
    "tf32_alias": ("global_flags", top("import torch.backends.cudnn as c", "c.benchmark = True  # HERE")),
    "tf32_setattr": ("global_flags", top("setattr(torch.backends.cudnn, 'allow_tf32', True)  # HERE")),
    "precision": ("global_flags", top("torch.set_float32_matmul_precision('high')  # HERE")),
    "gc": ("introspection", top("import gc", "objects = gc.get_objects()  # HERE")),
    "frame": ("introspection", top("import sys", "f = sys._getframe(1)  # HERE")),
    "stack": ("introspection", top("from inspect import stack  # HERE")),
    "main_module": ("introspection", top("import __main__ as m  # HERE")),
    "ctypes": ("forbidden_import", top("import ctypes as c  # HERE")),
    "cffi": ("forbidden_import", top("from cffi import FFI  # HERE")),
    "subprocess": ("forbidden_import", top("import os, subprocess  # HERE")),
    "socket": ("forbidden_import", top("def f():\n    import socket  # HERE")),
    "multiprocessing": ("forbidden_import", top("from multiprocessing import shared_memory  # HERE")),
    "torch_multiprocessing": ("forbidden_import", top("import torch.multiprocessing as mp  # HERE")),
    "threading": ("forbidden_import", top("from threading import Thread  # HERE")),
    "ctypes_by_name": ("forbidden_import", top("import importlib", "c = importlib.import_module('ctypes')  # HERE")),
    "fork": ("forbidden_call", top("import os", "pid = os.fork()  # HERE")),
    "system": ("forbidden_call", top("from os import system as s  # HERE")),
    "exec": ("dynamic_code", top("exec('import ctypes')  # HERE")),
    "eval_alias": ("dynamic_code", top("e = eval", "e('1')  # HERE")),
    "builtins_compile": ("dynamic_code", top("import builtins", "builtins.compile('1', '', 'eval')  # HERE")),
    "import_variable": ("dynamic_code", top("n = input()", "m = __import__(n)  # HERE")),
}

_DECLARATION = 'cpp_sources="torch::Tensor relu(torch::Tensor x);"'


def source(*extra: str, kernel: str = CUDA_SOURCE) -> str:
    """A submission whose CUDA source has further lines."""
    lines = "\n".join(extra)
    return cuda(f"{_DECLARATION}, cuda_sources=SOURCE", f'SOURCE = r"""{kernel}{lines}\n"""')


_NO_KERNEL = "torch::Tensor relu(torch::Tensor x) { return x; }\n"

CUDA: dict[str, tuple[str, str]] = {
    "no_extension": (
        "no_extension",
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x\n",
    ),
    "extension_in_comment": (
        "no_extension",
        "import torch\n# load_inline(cuda_sources=S)\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x): return x\n",
    ),
    "own_load_inline": (
        "no_extension",
        source().replace("from torch.utils.cpp_extension import load_inline", "def load_inline(*a, **k): return torch"),
    ),
    "triton_instead": ("no_extension", PLAIN),
    "no_global": ("no_kernel", source(kernel=_NO_KERNEL).replace("verbose=False)", "verbose=False)  # HERE")),
    "global_in_line_comment": ("no_kernel", source("// __global__ void k() {} k<<<1, 1>>>();", kernel=_NO_KERNEL)),
    "global_in_spliced_comment": ("no_kernel", source("// \\\n__global__ void k() {}", kernel=_NO_KERNEL)),
    "global_in_block_comment": ("no_kernel", source("/\\\n* __global__ void k() {} */", kernel=_NO_KERNEL)),
    "global_in_string": ("no_kernel", source('auto s = "\\"__global__ void k() {}";', kernel=_NO_KERNEL)),
    "global_in_raw_string": (
        "no_kernel",
        source('auto s = R"x(" )" __global__ void k() { k<<<1, 1>>>(); } )x";', kernel=_NO_KERNEL),
    ),
    "global_under_if_0": ("no_kernel", source("#if 0", "__global__ void k() {}", "#endif", kernel=_NO_KERNEL)),
    "global_under_if_1_inside_if_0": (
        "no_kernel",
        source("#if 0", "#if 1", "__global__ void k() {}", "#endif", "#elif 0", "#endif", kernel=_NO_KERNEL),
    ),
    "global_under_else_of_if_1": (
        "no_kernel",
        source("# if 1", "int i;", "#else", "__global__ void k() {}", "#endif", kernel=_NO_KERNEL),
    ),
    "global_only_declared": ("no_kernel", source("__global__ void k(float* x);", kernel=_NO_KERNEL)),
    "global_in_unused_macro": ("no_kernel", source("#define UNUSED __global__ void k() {}", kernel=_NO_KERNEL)),
    "not_launched": ("kernel_not_launched", source("__global__ void k() {}", kernel=_NO_KERNEL)),
    "launch_in_comment": (
        "kernel_not_launched",
        source("__global__ void k() {}", "/* k<<<1, 1>>>(); */", "auto s = '\"'; // \" <<<", kernel=_NO_KERNEL),
    ),
    "at_matmul": ("library_call", source("auto f(at::Tensor a) { return at::matmul(a, a); }  // HERE")),
    "torch_relu": ("library_call", source("auto f(torch::Tensor a) {", "  return ::torch :: relu_(a);  // HERE", "}")),
    "at_native": ("library_call", source("auto f(at::Tensor a) { return at::native::softmax(a, 0); }  // HERE")),
    "at_ops": ("library_call", source("auto f(at::Tensor a) { return at::_ops::mm::call(a, a); }  // HERE")),
    "functional": ("library_call", source("auto f(T a) { return torch::nn::functional::gelu(a); }  // HERE")),
    "namespace_alias": (
        "library_call",
        source("namespace F = torch::nn::functional;", "auto f(T a) { return F::gelu(a); }  // HERE"),
    ),
    "using_declaration": ("library_call", source("using at::bmm;  // HERE")),
    "nn_module": ("library_call", source("torch::nn::Linear layer(4, 4);  // HERE")),
    "method": ("library_call", source("auto f(at::Tensor a) { return a.mm(a); }  // HERE")),
    "pointer_method": ("library_call", source("auto f(at::Tensor* a) { return a->matmul(*a); }  // HERE")),
    "spliced_name": (
        "library_call",
        source("auto f(at::Tensor a) { return at::mat\\\nmul(a, a); }").replace("auto f(at", "/* HERE */ auto f(at"),
    ),
    "macro": (
        "library_call",
        source("#define PRODUCT(a, b) at::mm(a, b)  // HERE", "auto f(at::Tensor a) { return PRODUCT(a, a); }"),
    ),
    "after_a_quote_in_a_comment": (
        "library_call",
        source("// it's \" open", "auto f(at::Tensor a) { return at::mm(a, a); }  // HERE"),
    ),
    "after_a_comment_in_a_string": (
        "library_call",
        source('auto s = "/*";', "auto f(at::Tensor a) { return at::mm(a, a); }  // HERE", 'auto t = "*/";'),
    ),
    "cublas": ("library_call", source("void f() { cublasSgemm(h, n, n, 1, 1, 1); }  // HERE")),
    "cublas_header": ("library_call", source("#include <cublas_v2.h>  // HERE")),
    "cudnn_header": ("library_call", source('#  include "cudnn.h"  // HERE')),
    "cudnn": ("library_call", source("void f() { cudnnConvolutionForward(h); }  // HERE")),
    "blas_of_at": ("library_call", source("void f() { at::cuda::blas::gemm<float>(1); }  // HERE")),
    "f_string": (
        "library_call",
        source()
        .replace("ext = load", 'NAME = "mm"\next = load')
        .replace("cuda_sources=SOURCE", 'cuda_sources=SOURCE + f"auto f(at::Tensor a) {{ return at::{NAME}(a, a); }}"'),
    ),
    "torch_around_it": (
        "torch_compute",
        source().replace("return ext.relu(x)", "return torch.relu(ext.relu(x))  # HERE"),
    ),
}

CPU: dict[str, tuple[str, str]] = {
    "only_a_declaration": ("no_kernel", source()),
    "definition_in_comment": (
        "no_kernel",
        cuda('cpp_sources="/* torch::Tensor relu(torch::Tensor x) { return x; } */ int relu(int);"').replace(
            "verbose=False)", "verbose=False)  # HERE"
        ),
    ),
    "no_sources": ("no_kernel", cuda("cuda_sources='int f() { return 1; }'")),
    "library": (
        "library_call",
        cuda('cpp_sources=r"""\ntorch::Tensor relu(torch::Tensor x) {\n  return torch::relu(x);  // HERE\n}"""'),
    ),
}
