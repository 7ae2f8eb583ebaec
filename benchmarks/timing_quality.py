"""How good the reported times are: the reference against itself, our medians against triton.testing.do_bench, and
times taken while other sessions compile.

Asks evaluators directly, past the server; KERNELBENCH_DIR names the tasks. See benchmarks/README.md. Touches the GPU
only through pools and do_bench_child.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench_common import (
    ROOT,
    BenchmarkPool,
    Budget,
    Results,
    Row,
    Submission,
    evaluate,
    finish,
    options,
    submission,
)
from bench_common import earlier_rows as earlier
from episode_plan import chosen, correct_code
from timing_report import BENCH, LOAD, LOADED, QUIET, SELF, report

from server.pool import PoolEvaluator
from server.settings import Settings
from server.tasks import TaskSource

RESULT_FILE = "timing_quality.json"
REPEATS = 10
# So that one unlucky measurement of the reference does not stand behind all of a task's speedups.
BASELINES = 2
# Tasks of the reference against itself, by number: element-wise, reductions, products, convolutions, losses; one below
# 0.3 ms; and whole networks, of which the deep ones are launch-bound.
SELF_TASKS = {
    "level1": (1, 3, 4, 6, 8, 10, 12, 19, 23, 40, 42, 43, 47, 50, 54, 71, 82, 88, 95),
    "level2": (6, 12, 17, 23, 28, 37, 44, 59, 76, 79, 85, 99),
    "level3": (1, 3, 4, 8, 9, 11, 15, 20, 43),
}
# These are measured together: what a run had no time for is measured again from the start, on one machine.
CHUNK = 8
BENCH_KERNELS = (
    "level1/1_Square_matrix_multiplication_",
    "level1/19_ReLU",
    "level1/23_Softmax",
    "level1/26_GELU_",
    "level1/36_RMSNorm_",
    "level1/37_FrobeniusNorm_",
    "level1/40_LayerNorm",
    "level1/42_Max_Pooling_2D",
    "level1/47_Sum_reduction_over_a_dimension",
    "level1/63_conv_standard_2D__square_input__square_kernel",
    "level1/95_CrossEntropyLoss",
    "level2/76_Gemm_Add_ReLU",
)
BENCH_REPEATS = 3
BENCH_TIMEOUT_S = 180.0
LOAD_KERNELS = (
    "level1/1_Square_matrix_multiplication_",
    "level1/19_ReLU",
    "level1/36_RMSNorm_",
    "level1/40_LayerNorm",
    "level1/95_CrossEntropyLoss",
    "level2/76_Gemm_Add_ReLU",
)
COMPILING_SESSIONS = 31
LOAD_ROUNDS = 6
FIRST_GUESS_S = {SELF: 180.0, BENCH: 40.0, LOAD: 300.0}

# Compiles for seconds and defines no ModelNew, so that it never uses the GPU.
COMPILES = '''
from torch.utils.cpp_extension import load_inline

CPP_SOURCE = r"""
// MARK
#include <pybind11/pybind11.h>
#include <regex>
bool found(const std::string& text) { return std::regex_search(text, std::regex("a+b|c")); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("found", &found); }
"""
CUDA_SOURCE = r"""
// MARK
#include <cuda_runtime.h>
template <int N> __global__ void sums(float* x) {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = x[i * blockDim.x + threadIdx.x];
#pragma unroll
    for (int i = 1; i < N; ++i) values[i] = values[i] * values[i - 1] + sinf(values[i]);
    x[threadIdx.x] = values[N - 1];
}
template __global__ void sums<16>(float*);
template __global__ void sums<32>(float*);
template __global__ void sums<48>(float*);
"""
load_inline(name="compiles", cpp_sources=[CPP_SOURCE], cuda_sources=SOURCES, no_implicit_headers=True)
'''


def kernel_for(task_id: str, tasks: TaskSource) -> Submission:
    """A correct Triton kernel for the task."""
    return submission(tasks.get(task_id), correct_code(task_id), "triton")


@dataclass
class Run:
    """One run of this program: what it measures with and where it writes."""

    settings: Settings
    tasks: TaskSource
    results: Results
    budget: Budget

    @contextlib.contextmanager
    def pool(self, self_test: bool = False) -> Iterator[PoolEvaluator]:
        """A started pool with a cache of its own."""
        with tempfile.TemporaryDirectory() as cache:
            settings = self.settings.model_copy(update={"cache_dir": Path(cache)})
            pool = BenchmarkPool(settings, self_test=True) if self_test else PoolEvaluator(settings)
            pool.start()
            try:
                self.results.head["judges"] = len(pool.status()["workers"])
                yield pool
            finally:
                pool.close()

    async def score(self, pool: PoolEvaluator, what: Submission) -> Row:
        """One evaluation at the server's default counts."""
        return await evaluate(pool, what, self.settings.trials, self.settings.timed_runs)

    # ------------------------------------------------------------ the reference against itself

    async def _self_chunk(self, pool: PoolEvaluator, task_ids: list[str]) -> None:
        """Every repeat of some tasks, as many at a time as there are judges."""
        waiting = [(task_id, repeat) for repeat in range(REPEATS) for task_id in task_ids][::-1]

        async def session() -> None:
            while waiting:
                task_id, repeat = waiting.pop()
                task = self.tasks.get(task_id)
                code, note = f"{task.source}\nModelNew = Model\n", f"baseline {repeat * BASELINES // REPEATS}"
                # Not as Triton, which is run once more without its kernels: a reference has none.
                row = await self.score(pool, submission(task, code, "cuda", note))
                self.results.add({"part": SELF, "repeat": repeat, **row})

        await asyncio.gather(*(session() for _ in pool.status()["workers"]))

    def self_tests(self, task_ids: list[str]) -> int:
        """Score references against themselves; how many tasks did not fit."""
        with self.pool(self_test=True) as pool:
            for first in range(0, len(task_ids), CHUNK):
                if not self.budget.allows(SELF):
                    return len(task_ids) - first
                began = time.monotonic()
                asyncio.run(self._self_chunk(pool, task_ids[first : first + CHUNK]))
                self.budget.record(SELF, time.monotonic() - began)
                print(f"{SELF}: {first + len(task_ids[first : first + CHUNK])} tasks", flush=True)
        return 0

    # ------------------------------------------------------------ do_bench

    def bench(self, kernels: list[str]) -> int:
        """Time kernels by do_bench and by a pool in turn; how many did not fit."""
        with self.pool() as pool:
            for number, kernel in enumerate(kernels):
                if not self.budget.allows(BENCH):
                    return len(kernels) - number
                began = time.monotonic()
                what = kernel_for(kernel, self.tasks)
                rows = [asyncio.run(self.score(pool, what)) for _ in range(BENCH_REPEATS)]
                ours_ms = [row["t_new_ms"] for row in rows if row["outcome"] == "scored"]
                row: Row = {"part": BENCH, "task_id": kernel, "ours_ms": ours_ms, "evaluations": rows}
                self.results.add(row | self._do_bench(what))
                self.budget.record(BENCH, time.monotonic() - began)
                print(f"{BENCH}: {kernel}", flush=True)
        return 0

    def _do_bench(self, what: Submission) -> Row:
        child = str(ROOT / "benchmarks" / "do_bench_child.py")
        request = {"reference": what.task_source, "code": what.code, "repeats": BENCH_REPEATS}
        devices = str(self.settings.gpus[0]) if self.settings.evaluator == "gpu" else ""
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": devices}
        if not devices:
            environment["TRITON_INTERPRET"] = "1"
        with tempfile.TemporaryDirectory() as directory:
            answer = Path(directory) / "answer.json"
            environment["TRITON_CACHE_DIR"] = directory
            try:
                run = subprocess.run(
                    [sys.executable, child, str(answer)],
                    input=json.dumps(request),
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=BENCH_TIMEOUT_S,
                )
            except subprocess.TimeoutExpired:
                return {"error": "do_bench did not end in time"}
            if not answer.is_file():
                return {"error": run.stderr[-1000:]}
            return {"do_bench_ms": json.loads(answer.read_text(encoding="utf-8"))}

    # ------------------------------------------------------------ beside compilers

    def beside_compilers(self) -> int:
        """Time kernels on a quiet machine, beside compilers, and on a quiet one again; 1 when it did not fit."""
        if not self.budget.allows(LOAD):
            return 1
        with self.pool() as pool:
            rows = asyncio.run(self._beside(pool))
        for row in rows:
            self.results.add(row)
        return 0

    async def _round(self, pool: PoolEvaluator, condition: str, load: Load) -> list[Row]:
        """Every kernel once: one after the other on a quiet machine, at once among the others that wait."""
        before = _cpu_ticks()
        whats = [kernel_for(kernel, self.tasks) for kernel in LOAD_KERNELS]
        if condition == QUIET:
            rows = [await self.score(pool, what) for what in whats]
        else:
            rows = list(await asyncio.gather(*(self.score(pool, what) for what in whats)))
        busy, total = (after - start for after, start in zip(_cpu_ticks(), before, strict=True))
        facts = {"compiled": load.compiled, "not_compiled": load.failed, "cpu_busy": round(busy / max(1, total), 3)}
        print(f"{LOAD}: a {condition} round, {facts}", flush=True)
        return [{"part": LOAD, "condition": condition, **facts, **row} for row in rows]

    async def _beside(self, pool: PoolEvaluator) -> list[Row]:
        load = Load()
        # The first round measures the references too.
        await self._round(pool, QUIET, load)
        rows: list[Row] = []
        for _ in range(LOAD_ROUNDS // 2):
            rows += await self._round(pool, QUIET, load)
        sessions = [asyncio.create_task(self._compile(pool, load)) for _ in range(COMPILING_SESSIONS)]
        await load.under_way.wait()
        for _ in range(LOAD_ROUNDS):
            rows += await self._round(pool, LOADED, load)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        while any(worker["state"] == "busy" for worker in pool.status()["workers"]):
            await asyncio.sleep(0.2)
        for _ in range(LOAD_ROUNDS - LOAD_ROUNDS // 2):
            rows += await self._round(pool, QUIET, load)
        return rows

    async def _compile(self, pool: PoolEvaluator, load: Load) -> None:
        """A session that submits nothing but what compiles, until it is cancelled."""
        kernel = LOAD_KERNELS[-1]
        sources = "[CUDA_SOURCE]" if self.settings.evaluator == "gpu" else "[]"
        while True:
            code = COMPILES.replace("MARK", uuid.uuid4().hex).replace("SOURCES", sources)
            row = await self.score(pool, submission(self.tasks.get(kernel), code, "cuda"))
            # Compiled, and then there was no ModelNew.
            load.count(row["outcome"] == "missing_model")
            if row["outcome"] != "missing_model":
                print(f"{LOAD}: {row['outcome']} {row['infra_code']} {row['feedback']}", flush=True)


@dataclass
class Load:
    """What the compiling sessions have done so far."""

    compiled: int = 0
    failed: int = 0
    under_way: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, compiled: bool) -> None:
        """One compilation is over."""
        self.compiled += compiled
        self.failed += not compiled
        self.under_way.set()


def _cpu_ticks() -> tuple[int, int]:
    """The ticks in which the machine's CPUs worked, and all of them."""
    with open("/proc/stat", encoding="ascii") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def self_task_ids(tasks: TaskSource) -> list[str]:
    """The tasks of SELF_TASKS that are here."""
    wanted = {f"{level}/{number}_" for level, numbers in SELF_TASKS.items() for number in numbers}
    return [task_id for task_id in tasks.task_ids if task_id.split("_")[0] + "_" in wanted]


def keep(rows: list[Row]) -> list[Row]:
    """The rows of what was measured in full, without faults of ours."""
    sound = [row for row in rows if not row.get("infra_code") and not row.get("error")]
    whole: set[str] = set()
    for task_id in {row["task_id"] for row in sound if row["part"] == SELF}:
        if sum(row["part"] == SELF and row["task_id"] == task_id for row in sound) == REPEATS:
            whole.add(task_id)
    load = [row for row in sound if row["part"] == LOAD]
    all_load = len(load) == 2 * LOAD_ROUNDS * len(LOAD_KERNELS)
    others = [row for row in sound if row["part"] == BENCH or (row["part"] == SELF and row["task_id"] in whole)]
    return others + (load if all_load else [])


def main() -> int:
    """Measure what is planned; 0 only if all of it was and every condition holds."""
    parser = options(__doc__, RESULT_FILE)
    parser.add_argument("--part", choices=[SELF, BENCH, LOAD, "all"], default="all")
    arguments = parser.parse_args()
    parts = (SELF, BENCH, LOAD) if arguments.part == "all" else (arguments.part,)
    rows = keep(earlier(arguments.skip_done, arguments.evaluator))
    settings = Settings(evaluator=arguments.evaluator)
    settings = settings.model_copy(update={"gpus": settings.gpus[:1]})
    results = Results(arguments.out / RESULT_FILE, arguments.evaluator, rows)
    run = Run(
        settings,
        TaskSource.open(settings, arguments.evaluator),
        results,
        Budget(arguments.budget_s, dict(FIRST_GUESS_S)),
    )
    first, step = arguments.shard

    def planned(part: str, names: list[str]) -> list[str]:
        done = {row["task_id"] for row in rows if row["part"] == part}
        mine = [name for name in names[first::step] if chosen(arguments.only, name)]
        return [name for name in mine if part in parts and name not in done]

    missing = 0
    # What cannot be split goes with the first shard, and first.
    if LOAD in parts and first == 0 and not any(row["part"] == LOAD for row in rows):
        missing += run.beside_compilers()
    if kernels := planned(BENCH, list(BENCH_KERNELS)):
        missing += run.bench(kernels)
    if task_ids := planned(SELF, self_task_ids(run.tasks)):
        missing += run.self_tests(task_ids)
    return finish(results, report(results.rows, COMPILING_SESSIONS), missing)


if __name__ == "__main__":
    sys.exit(main())
