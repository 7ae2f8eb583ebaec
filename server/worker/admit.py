"""Decides for each task of a directory whether it is admitted, and writes the table that the server reads.

    python -m server.worker.admit DIRECTORY --out FILE

DIRECTORY is in KernelBench's layout, levels 1 to 3. Runs references, which are trusted, on the device. The table is
JSON lines; tasks that are in it already with the same source are not measured again.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

from server.worker import compare_kernel
from server.worker.admission import admit, describe
from server.worker.device import create_device
from server.worker.protocol import Admission, Evaluate
from server.worker.task_context import TaskContext
from server.worker.task_module import TaskError


def main() -> int:
    """Measure what is missing; 0 when every task is in the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", metavar="SUBSTR", help="only tasks whose id contains this")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no task after this many seconds")
    arguments = parser.parse_args()

    on_cpu = os.environ.get("KERNEL_ENV_EVALUATOR", "").strip().lower() == "cpu"
    if not on_cpu and not torch.cuda.is_available():
        parser.error(
            "a GPU that torch can use is needed; for tasks that a CPU can run in reasonable time (minutes each for "
            "KernelBench's sizes), set KERNEL_ENV_EVALUATOR=cpu"
        )
    torch.set_grad_enabled(False)
    device = create_device("cpu" if on_cpu else "cuda")
    if device.kind == "cuda":
        compare_kernel.warm_up(device.torch_device)
    rows: dict[str, dict[str, object]] = {}
    if arguments.out.exists():
        for line in arguments.out.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[str(row["task_id"])] = row
    began = time.monotonic()
    missing = 0
    for path in sorted(arguments.directory.glob("level[1-3]/*.py"), key=_order):
        task_id = f"{path.parent.name}/{path.stem}"
        source = path.read_text(encoding="utf-8")
        digest = hashlib.sha256(source.encode()).hexdigest()
        if arguments.only not in task_id or rows.get(task_id, {}).get("source_sha256") == digest:
            continue
        if time.monotonic() - began > arguments.budget_s:
            missing += 1
            continue
        started = time.monotonic()
        try:
            task = TaskContext(Evaluate("", task_id, source, ""), device)
            result = admit(task, atol=1e-2, rtol=1e-2)
        except torch.AcceleratorError:
            raise
        except torch.OutOfMemoryError:
            print(f"{task_id}: needs more memory than this device has free", flush=True)
            result = None
        except (TaskError, RuntimeError, ValueError, TypeError) as error:
            result = Admission(False, f"{type(error).__name__}: {str(error)[:300]}")
        task = None
        gc.collect()
        device.empty_cache()
        if result is None:
            missing += 1
            continue
        rows[task_id] = describe(task_id, digest, result)
        _write(arguments.out, rows)
        print(f"{time.monotonic() - started:6.1f} s  {_sentence(rows[task_id])}", flush=True)
    admitted = sum(bool(row["admitted"]) for row in rows.values())
    print(f"{admitted} of {len(rows)} tasks are admitted; {missing} were not measured")
    return int(missing > 0)


def _order(path: Path) -> tuple[str, int]:
    return path.parent.name, int(path.stem.split("_")[0])


def _sentence(row: dict[str, object]) -> str:
    verdict = "admitted" if row["admitted"] else f"NOT ADMITTED: {row['reason']}"
    return f"{row['task_id']}: {verdict} {json.dumps(row['trials'])} margin {row['margin']}"


def _write(path: Path, rows: dict[str, dict[str, object]]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
