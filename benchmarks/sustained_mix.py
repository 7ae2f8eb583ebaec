"""What benchmarks/sustained.py submits: good and broken kernels, no two alike. Reads benchmarks/kernels/, examples/."""

from __future__ import annotations

import json
import random
import re
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernel_env.models import Outcome

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
KERNELS = ROOT / "benchmarks" / "kernels"

SHARES = {"triton": 0.70, "cuda": 0.15, "broken": 0.15}
# Of all submissions; the other broken ones have equal shares.
ENDLESS_SHARE = 1 / 200
# The outcomes that each way of being broken may come to.
BROKEN: dict[str, frozenset[Outcome]] = {
    "syntax error": frozenset({Outcome.SYNTAX_ERROR}),
    "static violation": frozenset({Outcome.STATIC_VIOLATION}),
    "hidden fallback": frozenset({Outcome.FORMAT_VIOLATION}),
    "wrong values": frozenset({Outcome.WRONG_VALUES, Outcome.NOT_NORMALIZED, Outcome.NONFINITE}),
    "runtime error": frozenset({Outcome.RUNTIME_ERROR}),
    "illegal access": frozenset({Outcome.RUNTIME_ERROR, Outcome.CRASHED}),
    "out of memory": frozenset({Outcome.OUT_OF_MEMORY}),
    "endless": frozenset({Outcome.TIMEOUT}),
}
RELU = "level1/19_ReLU"
CUDA_TASKS = (RELU, "level1/36_RMSNorm_", "level1/47_Sum_reduction_over_a_dimension")
# On the built-in tasks these have their errors too; the others were made for KernelBench's sizes.
WRONG_ANYWHERE = (RELU, "level1/26_GELU_")
_JIT = re.compile(r"@triton\.jit\s+def (\w+)\(")
_GLOBAL = re.compile(r"__global__ void(?: __launch_bounds__\([^)]*\))? (\w+)\(")
_EXTENSION = re.compile(r"\bname=\"(\w+)\"")
_FORWARD = re.compile(r"(    def forward\(self, (\w+).*?\) -> torch\.Tensor:\n)", re.DOTALL)
# What the cpu evaluator takes for CUDA, without torch's headers, which take minutes.
CPP_RELU = '''\
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <pybind11/pybind11.h>
void relu_kernel(uintptr_t x, uintptr_t y, int64_t n) {
    const float* in = reinterpret_cast<const float*>(x);
    float* out = reinterpret_cast<float*>(y);
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] > 0 ? in[i] : 0;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("relu", &relu_kernel); }
"""

extension = load_inline(name="relu_cpp", cpp_sources=[SOURCE], no_implicit_headers=True)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        extension.relu(x.data_ptr(), y.data_ptr(), x.numel())
        return y
'''


@dataclass(frozen=True)
class Submission:
    """One submission. `kind` is a key of SHARES, `detail` a key of BROKEN or the language."""

    kind: str
    detail: str
    task_id: str
    code: str
    expected: frozenset[Outcome]

    @property
    def language(self) -> str:
        """As reset takes it."""
        return "cuda" if self.kind == "cuda" else "triton"


def unique(code: str) -> str:
    """The same program under a new name: its kernels and its extension have one that no cache knows."""
    mark = uuid.uuid4().hex[:12]
    for name in {*_JIT.findall(code), *_GLOBAL.findall(code)}:
        code = re.sub(rf"\b{name}\b", f"{name}_{mark}", code)
    code = _EXTENSION.sub(rf'name="\1_{mark}"', code)
    return f"# {mark}\n{code}"


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _patches() -> dict[str, dict[str, str]]:
    return json.loads(_read(KERNELS / "wrong.json"))


class Mix:
    """Draws submissions for a server's tasks. `kernelbench` says that they are KernelBench's own."""

    def __init__(self, evaluator: str, kernelbench: bool, seed: int) -> None:
        self._random = random.Random(seed)
        self._cpu = evaluator == "cpu"
        self._mock = evaluator == "mock"
        roots = (EXAMPLES, KERNELS) if kernelbench else (EXAMPLES,)
        self.triton: dict[str, list[Path]] = {}
        for root in roots:
            for path in sorted([*root.glob("level1/*.py"), *root.glob("level2/*.py")]):
                self.triton.setdefault(f"{path.parent.name}/{path.stem}", []).append(path)
        self._wrong = [task for task in _patches() if task[:6] != "level3"] if kernelbench else list(WRONG_ANYWHERE)

    def warm_up(self) -> list[Submission]:
        """A good kernel for each task and for each language, so that every baseline is known afterwards."""
        tasks = [self._good("triton", task_id, self._triton(task_id)) for task_id in self.triton]
        return [*tasks, *(self._cuda(task_id) for task_id in ((RELU,) if self._cpu else CUDA_TASKS))]

    def draw(self) -> Submission:
        """The next submission."""
        if self._random.random() < ENDLESS_SHARE:
            return self._broken("endless")
        kind = self._random.choices(list(SHARES), self._weights())[0]
        if kind == "triton":
            task_id = self._random.choice(list(self.triton))
            return self._good("triton", task_id, self._triton(task_id))
        if kind == "cuda":
            return self._cuda(self._random.choice(CUDA_TASKS))
        return self._broken(self._random.choice([detail for detail in BROKEN if detail != "endless"]))

    @staticmethod
    def _weights() -> list[float]:
        """Those with which the endless ones, drawn before, are part of the broken."""
        return [share - ENDLESS_SHARE * (kind == "broken") for kind, share in SHARES.items()]

    def _triton(self, task_id: str) -> str:
        return _read(self._random.choice(self.triton[task_id]))

    def _good(self, kind: str, task_id: str, code: str) -> Submission:
        return Submission(kind, kind, task_id, unique(code), frozenset({Outcome.SCORED}))

    def _cuda(self, task_id: str) -> Submission:
        if self._cpu:
            return self._good("cuda", RELU, CPP_RELU)
        return self._good("cuda", task_id, _read(KERNELS / "cuda" / f"{task_id}.py"))

    def _broken(self, detail: str) -> Submission:
        task_id, expected = RELU, BROKEN[detail]
        extra = {
            "static violation": "torch_fallback",
            "hidden fallback": "hidden_fallback",
            "illegal access": "illegal_access",
            "endless": "never_returns",
        }
        if detail in extra:
            code = _read(KERNELS / "extra" / f"{extra[detail]}.py")
        elif detail == "wrong values":
            task_id = self._random.choice(self._wrong)
            patch = _patches()[task_id]
            code = _read(KERNELS / f"{task_id}.py").replace(patch["find"], patch["replace"])
        else:
            task_id = self._random.choice([task for task in self.triton if task.startswith("level1/")])
            lines = {
                "syntax error": "        y = (\n",
                "runtime error": "        if {0}.numel() > 0:\n            raise ValueError('on purpose')\n",
                "out of memory": "        torch.empty(1 << 44, device={0}.device)\n",
            }
            add = lines[detail]
            code = _FORWARD.sub(lambda found: found[1] + add.format(found[2]), self._triton(task_id), count=1)
        if self._mock:  # it runs nothing
            expected = expected | {Outcome.SCORED}
        return Submission("broken", detail, task_id, unique(code), expected)
