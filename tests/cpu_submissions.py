"""Submissions for the tests of the cpu evaluator: one correct softmax with holes, and what goes wrong in each hole.

Data only; imports nothing heavy. The task is level1/23_Softmax in its small variant, and level1/19_ReLU for C++.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

TASK = "level1/23_Softmax"

_TEMPLATE = """\
import os
import signal
import sys
import time

import torch
import torch.nn as nn
import triton
import triton.language as tl
{top}

@triton.jit
def softmax_kernel(x_ptr, out_ptr, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * length + column, mask=column < length, other=float("-inf"))
    y = tl.exp(x - tl.max(x, axis=0))
    y = {value}
    tl.store(out_ptr + row * length + column, y, mask=column < length)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        x = x.contiguous()
        {forward}
        out = {out}
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return {result}
"""


def softmax(
    top: str = "",
    value: str = "y / tl.sum(y, axis=0)",
    init: str = "pass",
    forward: str = "pass",
    out: str = "torch.empty_like(x)",
    result: str = "out",
) -> str:
    """A Triton softmax, correct unless a hole is filled: module level, the row's value in the kernel, __init__, the
    beginning of forward, the output's allocation, the returned expression."""
    inner = " " * 8
    return _TEMPLATE.format(
        top=textwrap.dedent(top),
        value=value,
        init=textwrap.indent(textwrap.dedent(init), inner).strip(),
        forward=textwrap.indent(textwrap.dedent(forward), inner).strip(),
        out=out,
        result=result,
    )


GOOD = softmax()


@dataclass(frozen=True)
class Bad:
    """A submission that must fail: where, how, and words that its feedback must have."""

    code: str
    stage: str
    outcome: str
    words: tuple[str, ...]


def at(hole: str, line: str) -> str:
    """A softmax with one statement in a hole, under a condition that a parser cannot decide."""
    return softmax(**{hole: f"if time is not None:\n    {line}"})


BAD: dict[str, Bad] = {
    "wrong values": Bad(
        softmax(value="y / tl.sum(y, axis=0) * 1.5"), "correctness", "wrong_values", ("wrong", "expected", "tolerance")
    ),
    "wrong shape": Bad(softmax(result="out[:, :-1]"), "correctness", "wrong_shape", ("shape", "999", "1000")),
    "wrong dtype": Bad(softmax(result="out.half()"), "correctness", "wrong_dtype", ("float16", "float32")),
    "a tuple": Bad(softmax(result="(out, out)"), "correctness", "wrong_structure", ("tuple", "tensor")),
    "None": Bad(softmax(result="None"), "correctness", "wrong_structure", ("None", "tensor")),
    "NaN": Bad(softmax(value='y * float("nan")'), "correctness", "nonfinite", ("NaN", "nan")),
    "rows that sum to 1.008": Bad(
        softmax(value="y / tl.sum(y, axis=0) * 1.008"), "correctness", "not_normalized", ("sums to 1",)
    ),
    "infinite loop": Bad(softmax(forward="while True:\n    pass"), "correctness", "timeout", ("forward", "within")),
    "infinite loop at import": Bad(
        softmax(top="while time is not None:\n    pass"), "compile", "timeout", ("Importing", "within 3 s")
    ),
    "crash by signal": Bad(
        at("forward", "os.kill(os.getpid(), signal.SIGSEGV)"), "correctness", "crashed", ("SIGSEGV", "signal 11")
    ),
    "abort while it is built": Bad(at("init", "os.abort()"), "compile", "crashed", ("SIGABRT",)),
    "os._exit": Bad(at("forward", "os._exit(0)"), "correctness", "exited", ("exit code 0", "before")),
    "os._exit at import": Bad(at("top", "os._exit(7)"), "compile", "exited", ("exit code 7",)),
    "sys.exit": Bad(at("forward", "sys.exit(3)"), "correctness", "exited", ("SystemExit: 3", "in forward")),
    "100 MB of stdout": Bad(
        softmax(forward='for _ in range(100):\n    print("x" * (1 << 20))'),
        "correctness",
        "output_limit",
        ("16 MiB", "print"),
    ),
    "import error": Bad(softmax(top="import not_installed_here"), "compile", "import_error", ("not_installed_here",)),
    "exception at import": Bad(
        at("top", 'raise ValueError("at import")'), "compile", "compile_error", ("ValueError: at import", "line")
    ),
    "exception in __init__": Bad(
        at("init", 'raise ValueError("while built")'), "compile", "construction_error", ("while built", "in __init__")
    ),
    "exception in forward": Bad(
        at("forward", 'raise ValueError("while called")'), "correctness", "runtime_error", ("while called", "forward")
    ),
    "other arguments of __init__": Bad(
        softmax().replace("def __init__(self):", "def __init__(self, size):"),
        "compile",
        "construction_error",
        ("size", "__init__"),
    ),
    "other arguments of forward": Bad(
        softmax().replace("def forward(self, x):", "def forward(self, x, y):"), "correctness", "runtime_error", ("'y'",)
    ),
    "kernel that does not compile": Bad(
        softmax(value="tl.no_such_function(y)"), "compile", "compile_error", ("no_such_function", "softmax_kernel")
    ),
    "out of memory": Bad(
        softmax(forward="held = []\nwhile True:\n    held.append(torch.empty(1 << 26))"),
        "correctness",
        "out_of_memory",
        ("memory", "line"),
    ),
    "one huge tensor": Bad(
        softmax(forward="torch.empty(1 << 40)"), "correctness", "out_of_memory", ("allocate", "4398046511104 bytes")
    ),
    "torch fallback": Bad(softmax(result="torch.softmax(x, 1)"), "static", "static_violation", ("torch.softmax",)),
    "torch arithmetic in forward": Bad(
        softmax(forward="x = x * 1.0"), "correctness", "format_violation", ("aten.mul", "own kernel")
    ),
    "value read on the host": Bad(
        softmax(forward="if x[0, 0].item() > 2:\n    return x"), "correctness", "format_violation", (".item()", "host")
    ),
    "syntax error": Bad(softmax(result="(out"), "static", "syntax_error", ("line 32",)),
    "missing ModelNew": Bad(
        softmax().replace("class ModelNew", "class Softmax"), "static", "missing_model", ("ModelNew",)
    ),
}
"""Through a server: the static checks come first."""

UNCHECKED: dict[str, Bad] = {
    "syntax error": Bad(softmax(result="(out"), "compile", "syntax_error", ("SyntaxError", "line 32")),
    "missing ModelNew": Bad(
        softmax().replace("class ModelNew", "class Softmax"), "compile", "missing_model", ("no class ModelNew",)
    ),
    "ModelNew is no module": Bad(
        softmax().replace("ModelNew(nn.Module)", "ModelNew"), "compile", "missing_model", ("torch.nn.Module",)
    ),
    "torch fallback": Bad(
        softmax(result="torch.softmax(x, 1)"), "correctness", "format_violation", ("_softmax", "own kernel")
    ),
}
"""What the evaluator itself says where the static checks have not been asked."""

RELU_CPP = '''\
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <pybind11/pybind11.h>

void relu(uintptr_t x, uintptr_t y, int64_t n) {
    const float* in = reinterpret_cast<const float*>(x);
    float* out = reinterpret_cast<float*>(y);
    for (int64_t i = 0; i < n; ++i) {
        out[i] = in[i] > 0 ? in[i] : 0;
    }
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("relu", &relu); }
"""

extension = load_inline(name="relu_cpp", cpp_sources=SOURCE, no_implicit_headers=True)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        extension.relu(x.data_ptr(), out.data_ptr(), x.numel())
        return out
'''
"""Without torch's headers, which cost a compiler half a minute: honest/cpp_torch_extension.py has those."""

# Without pybind11's header the compiler fails within a second.
BROKEN_CPP = RELU_CPP.replace("#include <pybind11/pybind11.h>\n", "")
