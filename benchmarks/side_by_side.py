"""KernelBench's own evaluator and ours, side by side: the same kernels on the same GPU, one after the other.

KERNELBENCH_SRC is a checkout of KernelBench. Its eval_kernel_against_ref runs in a new process for each evaluation,
with empty caches; our judges are up, as a server's are, and every submission is new to them. See benchmarks/README.md.
Touches the GPU only through kernelbench_child.py and the pool.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench_common import ROOT, BenchmarkPool, Budget, Check, Results, Row, evaluate, finish, options, submission
from bench_common import earlier_rows as earlier
from episode_plan import chosen, correct_code

from server.pool import PoolEvaluator
from server.settings import Settings
from server.tasks import Task, TaskSource

RESULT_FILE = "side_by_side.json"
CORRECT_TRIALS = 5
TIMED_RUNS = 100
KERNELBENCH_TIMEOUT_S = 400.0
KERNELBENCH = "kernelbench"
COUNTS = ("default", "5+100")
# Evaluations with the reference's time known, after one without it.
REPEATS = {"triton": 5, "cuda": 2}
FIRST_GUESS_S = {KERNELBENCH: 150.0, "triton": 12.0, "cuda": 60.0}
# How many times lower than KernelBench's our latency must be, by our counts; or our median in seconds, at most.
HEAVY = {"default": 25.0, "5+100": 12.0}
LEAST_RATIO: dict[str, dict[str, float]] = {"heavy": HEAVY, "headers": {"default": 2.0}, "light": {"default": 8.0}}
MOST_S = 3.5


@dataclass(frozen=True)
class Item:
    """A kernel that both evaluate.

    `kind` is what must hold: "heavy" has inputs of 4 GB and more, "quick" has small ones (both Triton); "headers" and
    "light" are load_inline with torch's headers and with pybind11's alone.
    """

    kernel: str
    kind: Literal["heavy", "quick", "headers", "light"]

    @property
    def task_id(self) -> str:
        return self.kernel.removeprefix("cuda/")

    @property
    def language(self) -> str:
        return "cuda" if self.kernel.startswith("cuda/") else "triton"


# In this order the halves take about as long.
ITEMS = (
    Item("level1/19_ReLU", "heavy"),
    Item("level1/23_Softmax", "heavy"),
    Item("cuda/level1/19_ReLU", "headers"),
    Item("cuda/level1/36_RMSNorm_", "light"),
    Item("level1/1_Square_matrix_multiplication_", "quick"),
    Item("level2/76_Gemm_Add_ReLU", "quick"),
)
_TEXTS = re.compile(r'^(CPP_SOURCE|CUDA_SOURCE) = (r?"""|")', re.MULTILINE)


def unseen(code: str) -> str:
    """The same kernel as a text that no cache has seen, down to the C++ and CUDA in it."""
    mark = uuid.uuid4().hex
    return f"# {mark}\n" + _TEXTS.sub(rf"\1 = \2/* {mark} */ ", code)


# ---------------------------------------------------------------- KernelBench


def kernelbench_facts(source: Path) -> Row:
    """Which KernelBench it is: the hash of its evaluator's text."""
    paths = [source / "src" / "kernelbench" / "eval.py", source / "src" / "eval.py"]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise SystemExit(f"KERNELBENCH_SRC={source} is no checkout of KernelBench")
    commit = os.environ.get("KERNELBENCH_COMMIT")
    return {"commit": commit, "eval_sha256": hashlib.sha256(found.read_bytes()).hexdigest()}


def kernelbench(item: Item, reference: str, source: Path, gpu: int) -> Row:
    """One evaluation in a process of its own, with empty caches; `wall_s` is from its start to its end."""
    row: Row = {"kernel": item.kernel, "what": KERNELBENCH, "task_id": item.task_id, "language": item.language}
    with tempfile.TemporaryDirectory() as directory:
        caches = {name: f"{directory}/{name}" for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")}
        request = {
            "source": str(source.resolve()),
            "reference": reference,
            "code": unseen(correct_code(item.kernel)),
            "backend": item.language,
            "correct_trials": CORRECT_TRIALS,
            "timed_runs": TIMED_RUNS,
        }
        answer = Path(directory) / "answer.json"
        began = time.monotonic()
        try:
            run = subprocess.run(
                [sys.executable, str(ROOT / "benchmarks" / "kernelbench_child.py"), str(answer)],
                input=json.dumps(request),
                env=os.environ | caches | {"CUDA_VISIBLE_DEVICES": str(gpu)},
                capture_output=True,
                text=True,
                timeout=KERNELBENCH_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return row | {"wall_s": KERNELBENCH_TIMEOUT_S, "error": "it did not end in time"}
        row["wall_s"] = round(time.monotonic() - began, 3)
        if not answer.is_file():
            return row | {"error": (run.stdout + run.stderr)[-2000:]}
        return row | json.loads(answer.read_text(encoding="utf-8"))


# ---------------------------------------------------------------- ours


async def ours(pool: PoolEvaluator, item: Item, task: Task, what: str, budget: Budget, results: Results) -> int:
    """The evaluations of one item at one count, one after the other; how many did not fit."""
    settings = Settings()
    counts = (settings.trials, settings.timed_runs) if what == "default" else (CORRECT_TRIALS, TIMED_RUNS)
    planned = REPEATS[item.language] + 1
    for number in range(planned):
        if not budget.allows(item.language):
            return planned - number
        # Two items with one task do not share what is known about it.
        sent = submission(task, unseen(correct_code(item.kernel)), item.language, note=item.kernel)
        row = await evaluate(pool, sent, *counts)
        budget.record(item.language, row["wall_s"])
        results.add({"kernel": item.kernel, "what": what, "cold": number == 0, "counts": list(counts), **row})
        print(f"{item.kernel:44} {what:12} {row['outcome']:12} {row['wall_s']:7.2f} s", flush=True)
    return 0


def measure_ours(items: list[Item], tasks: TaskSource, results: Results, budget: Budget, gpu: int) -> int:
    """All items by a server's own judges, then by judges that make all of the timed runs; how many did not fit."""
    missing = 0
    for what in COUNTS:
        with tempfile.TemporaryDirectory() as cache:
            settings = Settings(evaluator=results.head["evaluator"], cache_dir=Path(cache), gpus=[gpu])
            pool = PoolEvaluator(settings) if what == "default" else BenchmarkPool(settings, every_run=True)
            pool.start()
            try:
                results.head["judges"] = len(pool.status()["workers"])
                for item in items:
                    missing += asyncio.run(ours(pool, item, tasks.get(item.task_id), what, budget, results))
            finally:
                pool.close()
    return missing


# ---------------------------------------------------------------- what came out


def complete(item: Item, rows: list[Row]) -> bool:
    """Whether an item has all of its rows, of one run on one machine."""
    mine = [row for row in rows if row["kernel"] == item.kernel]
    per_count = REPEATS[item.language] + 1
    wanted = {KERNELBENCH: 1, **dict.fromkeys(COUNTS, per_count)}
    return {what: sum(row["what"] == what for row in mine) for what in wanted} == wanted


@dataclass(frozen=True)
class Latency:
    """Our seconds for one item at one count."""

    cold_s: float
    warm_s: list[float]
    timed_runs: int | None

    @property
    def median_s(self) -> float:
        return statistics.median(self.warm_s)


def latency(item: Item, what: str, rows: list[Row]) -> Latency:
    """Of a complete item."""
    mine = [row for row in rows if row["kernel"] == item.kernel and row["what"] == what]
    warm = [row["wall_s"] for row in mine if not row["cold"]]
    return Latency(next(row["wall_s"] for row in mine if row["cold"]), warm, mine[-1]["timed_runs"])


def checks(items: list[Item], rows: list[Row]) -> list[Check]:
    """What must hold of every item that was measured in full."""
    found: list[Check] = []
    for item in items:
        if not complete(item, rows):
            continue
        mine = [row for row in rows if row["kernel"] == item.kernel]
        theirs = next(row for row in mine if row["what"] == KERNELBENCH)
        scored = all(row["outcome"] == "scored" for row in mine if row is not theirs)
        found.append({"name": f"{item.kernel}: we score it", "ok": scored})
        if item.kind == "quick":
            median_s = latency(item, "default", rows).median_s
            name = f"{item.kernel}: median {median_s:.2f} s, at most {MOST_S} s"
            found.append({"name": name, "ok": median_s <= MOST_S})
            continue
        found.append({"name": f"{item.kernel}: KernelBench finds it correct", "ok": theirs.get("correct") is True})
        for what, least in LEAST_RATIO[item.kind].items():
            ratio = theirs["wall_s"] / latency(item, what, rows).median_s
            name = f"{item.kernel}: {what} counts {ratio:.1f} times faster, at least {least:g} times"
            found.append({"name": name, "ok": ratio >= least})
    return found


HEADER = (
    f"{'kernel':44} {'kind':7} {'KernelBench':>11} {'alone':>7} {'correct':>7} "
    + " ".join(f"{what + ' cold':>12} {'warm':>6} {'(range)':>13} {'times':>6} {'runs':>4}" for what in COUNTS)
    + f" {'their ms':>9} {'our ms':>9}"
)


def describe(item: Item, rows: list[Row]) -> str:
    """One line of the table: seconds for an evaluation, and the kernel's own time."""
    mine = [row for row in rows if row["kernel"] == item.kernel]
    theirs = next(row for row in mine if row["what"] == KERNELBENCH)

    def number(value: Any, width: int, digits: int) -> str:
        return f"{value:{width}.{digits}f}" if isinstance(value, (int, float)) else " " * width

    parts = [f"{item.kernel:44} {item.kind:7} {theirs['wall_s']:11.1f} {number(theirs.get('inside_s'), 7, 1)}"]
    parts.append(f"{'yes' if theirs.get('correct') else 'NO':>7}")
    for what in COUNTS:
        seen = latency(item, what, rows)
        spread = f"({min(seen.warm_s):.2f}-{max(seen.warm_s):.2f})"
        parts.append(f"{seen.cold_s:12.2f} {seen.median_s:6.2f} {spread:>13} {theirs['wall_s'] / seen.median_s:6.1f}")
        parts.append(number(seen.timed_runs, 4, 0))
    parts.append(f"{number(theirs.get('t_new_ms'), 9, 4)} {number(mine[-1]['t_new_ms'], 9, 4)}")
    return " ".join(parts)


def main() -> int:
    """Measure what is planned; 0 only if all of it was and every check holds."""
    arguments = options(__doc__, RESULT_FILE).parse_args()
    source = Path(os.environ["KERNELBENCH_SRC"])
    facts = kernelbench_facts(source)
    first, step = arguments.shard
    items = [item for item in ITEMS[first::step] if chosen(arguments.only, item.kernel)]
    rows = earlier(arguments.skip_done, arguments.evaluator)
    done = [item for item in ITEMS if complete(item, rows)]
    rows = [row for row in rows if row["kernel"] in {item.kernel for item in done}]
    results = Results(arguments.out / RESULT_FILE, arguments.evaluator, rows)
    results.head["kernelbench"] = facts
    budget = Budget(arguments.budget_s, dict(FIRST_GUESS_S))
    settings = Settings(evaluator=arguments.evaluator)
    tasks = TaskSource.open(settings, arguments.evaluator)

    ready: list[Item] = []
    missing = 0
    for item in (item for item in items if item not in done):
        if not budget.allows(KERNELBENCH):
            missing += 1
            continue
        row = kernelbench(item, tasks.get(item.task_id).source, source, settings.gpus[0])
        results.add(row)
        print(f"{item.kernel:44} {KERNELBENCH:12} {row.get('error', '')[-60:]:12} {row['wall_s']:7.2f} s", flush=True)
        ready.append(item)
    if ready:
        missing += measure_ours(ready, tasks, results, budget, settings.gpus[0])
    print(f"\n{HEADER}")
    print("\n".join(describe(item, results.rows) for item in ITEMS if complete(item, results.rows)))
    return finish(results, checks(list(ITEMS), results.rows), missing)


if __name__ == "__main__":
    sys.exit(main())
