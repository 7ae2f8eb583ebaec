"""One evaluation by KernelBench's own eval_kernel_against_ref, in this process, which runs nothing else.

    python kernelbench_child.py RESULT < REQUEST

REQUEST is a JSON object: `source` (a checkout of KernelBench), `reference` and `code` (source texts), `backend`,
`correct_trials` and `timed_runs`. RESULT is the file for the answer. What KernelBench imports to talk to language
models and to show progress is replaced by nothing: none of it evaluates, and it would cost KernelBench seconds.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

BESIDE_THE_POINT = ("datasets", "dotenv", "litellm", "modal", "openai", "requests", "tqdm")
METADATA_CHARS = 1000


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _empty_module(name: str) -> ModuleType:
    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return _nothing

    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__["__getattr__"] = attribute
    return module


def load_evaluator(source: Path) -> Any:
    """The module with eval_kernel_against_ref, of a checkout before or after it became the package `kernelbench`."""
    importlib.import_module("torch")  # which may use what is replaced next
    for name in BESIDE_THE_POINT:
        sys.modules[name] = _empty_module(name)
    if (source / "src" / "kernelbench" / "eval.py").is_file():
        sys.path.insert(0, str(source / "src"))
        return importlib.import_module("kernelbench.eval")
    sys.path.insert(0, str(source))
    return importlib.import_module("src.eval")


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """What KernelBench says, and the seconds that its function alone took."""
    function = load_evaluator(Path(request["source"])).eval_kernel_against_ref
    import torch

    values = {
        "num_correct_trials": request["correct_trials"],
        "num_perf_trials": request["timed_runs"],
        "measure_performance": True,
        "device": torch.device("cuda", 0),
        "backend": request["backend"],
    }
    known = inspect.signature(function).parameters
    began = time.monotonic()
    result = function(request["reference"], request["code"], **{k: v for k, v in values.items() if k in known})
    inside_s = time.monotonic() - began
    if result is None:
        return {"compiled": False, "correct": False, "metadata": "it returned None", "inside_s": round(inside_s, 3)}
    return {
        "compiled": result.compiled,
        "correct": result.correctness,
        "t_new_ms": result.runtime,
        "t_ref_ms": getattr(result, "ref_runtime", None),
        "metadata": str(result.metadata)[:METADATA_CHARS],
        "inside_s": round(inside_s, 3),
    }


if __name__ == "__main__":
    answer = evaluate(json.load(sys.stdin))
    Path(sys.argv[1]).write_text(json.dumps(answer), encoding="utf-8")
