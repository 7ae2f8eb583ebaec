"""Submissions for the tests of the cpu evaluator: one correct softmax with holes, and what goes wrong in each hole.

Data only; imports nothing heavy. The task is always level1/23_Softmax in its small variant.
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


BAD: dict[str, Bad] = {
    "wrong values": Bad(softmax(value="y / tl.sum(y, axis=0) * 1.5"), "correctness", "wrong_values", ("differ",)),
    "wrong shape": Bad(softmax(result="out[:, :-1]"), "correctness", "wrong_shape", ("shape", "999", "1000")),
    "wrong dtype": Bad(softmax(result="out.half()"), "correctness", "wrong_dtype", ("float16", "float32")),
    "wrong structure": Bad(softmax(result="(out, out)"), "correctness", "wrong_structure", ("tuple",)),
    "not a tensor": Bad(softmax(result="None"), "correctness", "wrong_structure", ("None",)),
    "NaN": Bad(softmax(value='y * float("nan")'), "correctness", "nonfinite", ("NaN",)),
    "nothing written": Bad(softmax(value="y", forward="return torch.empty_like(x)"), "correctness", "nonfinite", ()),
    "not normalized": Bad(softmax(value="y / tl.sum(y, axis=0) * 1.008"), "correctness", "wrong_values", ()),
    "infinite loop": Bad(softmax(forward="while True:\n    pass"), "correctness", "timeout", ("3 s", "ended")),
    "endless import": Bad(softmax(top="while True:\n    pass"), "compile", "timeout", ("ended",)),
    "crash": Bad(
        softmax(forward="os.kill(os.getpid(), signal.SIGSEGV)"), "correctness", "crashed", ("SIGSEGV", "signal 11")
    ),
    "abort while it is built": Bad(softmax(init="os.abort()"), "compile", "crashed", ("SIGABRT",)),
    "os._exit": Bad(softmax(forward="os._exit(0)"), "correctness", "exited", ("exit code 0",)),
    "os._exit at import": Bad(softmax(top="os._exit(7)"), "compile", "exited", ("exit code 7",)),
    "sys.exit": Bad(softmax(forward="sys.exit(0)"), "correctness", "exited", ("SystemExit",)),
    "100 MB of stdout": Bad(
        softmax(forward='for _ in range(100):\n    print("x" * (1 << 20))'),
        "correctness",
        "output_limit",
        ("16 MiB", "print"),
    ),
    "import error": Bad(
        softmax(top="import a_module_that_is_not_there"), "compile", "import_error", ("a_module_that_is_not_there",)
    ),
    "error at import": Bad(softmax(top='raise ValueError("at import")'), "compile", "compile_error", ("at import",)),
    "error in __init__": Bad(
        softmax(init='raise ValueError("while built")'), "compile", "construction_error", ("while built", "__init__")
    ),
    "error in forward": Bad(
        softmax(forward='raise ValueError("while called")'), "correctness", "runtime_error", ("while called", "line")
    ),
    "bad kernel": Bad(softmax(value="tl.no_such_function(y)"), "compile", "compile_error", ("no_such_function",)),
    "out of memory": Bad(
        softmax(forward="held = []\nwhile True:\n    held.append(bytearray(256 << 20))"),
        "correctness",
        "out_of_memory",
        ("memory",),
    ),
    "one huge tensor": Bad(softmax(forward="torch.empty(1 << 40)"), "correctness", "out_of_memory", ("memory",)),
    "hidden fallback": Bad(
        softmax(forward='return getattr(torch, "soft" + "max")(x, 1)'),
        "correctness",
        "format_violation",
        ("softmax", "own kernel"),
    ),
    "host read": Bad(
        softmax(forward="if x[0, 0].item() > 2:\n    return x"), "correctness", "format_violation", ("host", ".item()")
    ),
    "syntax error": Bad("def forward(:\n", "compile", "syntax_error", ("submission.py", "line 1")),
    "missing ModelNew": Bad(GOOD.replace("ModelNew", "Model"), "compile", "missing_model", ("ModelNew",)),
    "ModelNew is no module": Bad(
        GOOD.replace("class ModelNew(nn.Module)", "class ModelNew"), "compile", "missing_model", ("torch.nn.Module",)
    ),
}
"""What the evaluator says; the static checks of a server reject a few of these before it."""
