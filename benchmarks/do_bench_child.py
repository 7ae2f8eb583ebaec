"""The median time of one submission by triton.testing.do_bench, several times, in a process that runs nothing else.

    python do_bench_child.py RESULT < REQUEST

REQUEST is a JSON object with `reference` and `code` (source texts) and `repeats`; RESULT is the file for the list of
medians in ms. Without a GPU the host's clock stands in, to exercise the program.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

WARM_UP_MS = 100
MEASURE_MS = 300


def load(name: str, source: str, directory: Path) -> ModuleType:
    """The source as a module with a file, which Triton reads."""
    path = directory / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def median_ms(call: Callable[[], Any], device: str) -> float:
    """The median time of `call`."""
    if device == "cuda":
        from triton.testing import do_bench

        found: Any = do_bench(call, warmup=WARM_UP_MS, rep=MEASURE_MS, return_mode="median")
        return float(found)
    times_ms = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times_ms)


def main() -> None:
    request = json.load(sys.stdin)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as directory, torch.no_grad(), torch.device(device):
        reference = load("reference", request["reference"], Path(directory))
        submission = load("submission", request["code"], Path(directory))
        model = submission.ModelNew(*reference.get_init_inputs()).to(device)
        inputs = [value.to(device) if isinstance(value, torch.Tensor) else value for value in reference.get_inputs()]
        model(*inputs)
        medians = [median_ms(lambda: model(*inputs), device) for _ in range(request["repeats"])]
    Path(sys.argv[1]).write_text(json.dumps(medians), encoding="utf-8")


if __name__ == "__main__":
    main()
