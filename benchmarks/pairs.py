"""Whether tasks can tell: correct kernels beside subtly wrong ones, and submissions that do no work at all.

Goes to the evaluator directly, with KernelBench's tasks (KERNELBENCH_DIR) or, with --evaluator cpu, the built-in ones.
`pairs` submits each kernel of kernels/ and its wrong twin of wrong.json `--repeats` times. `trivial` submits, for every
task of the table, answers that were made before forward was called. Touches the GPU only through the pool.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_common import (  # noqa: E402
    BenchmarkPool,
    Budget,
    Check,
    Results,
    Row,
    Submission,
    earlier_rows,
    evaluate,
    finish,
    options,
    submission,
)
from episode_plan import KERNELS, chosen, correct_code, wrong_code  # noqa: E402

from server.pool import PoolEvaluator  # noqa: E402
from server.settings import Settings  # noqa: E402
from server.tasks import TaskSource  # noqa: E402

RESULT_FILE = "pairs.json"
LEAST_TASKS = 60
# What an evaluation is taken to need before a longer one has been seen.
FIRST_GUESS_S = 15.0
# Rejected for its values, which is what this is about.
VALUES = frozenset("wrong_values not_normalized nonfinite".split())

# Everything that can be known before forward is called: the reference, its weights and the inputs' generator.
TRIVIAL = """
import torch.utils._pytree as _pytree


class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        model = Model(*arguments).cuda().eval() if torch.cuda.is_available() else Model(*arguments).eval()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.no_grad():
            inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in get_inputs()]
            answer = model(*inputs)
            self.answer = _pytree.tree_map(lambda y: {rule} if isinstance(y, torch.Tensor) else y, answer)

    def forward(self, *inputs):
        return _pytree.tree_map(lambda y: y.clone() if isinstance(y, torch.Tensor) else y, self.answer)
"""
RULES = {
    "zeros": "torch.zeros_like(y)",
    "mean": "torch.full_like(y, y.double().mean().item())",
    "other input": "y",
    "first input": "inputs[0].reshape(y.shape).to(y.dtype) if inputs[0].numel() == y.numel() else torch.ones_like(y)",
}


@dataclass(frozen=True)
class Item:
    """One evaluation: which table, which task, what is sent, which time."""

    table: str
    task_id: str
    what: str
    repeat: int

    def key(self) -> tuple[str, str, str, int]:
        return self.table, self.task_id, self.what, self.repeat


@dataclass
class Run:
    """The pools of this run and what has come out of it."""

    settings: Settings
    tasks: TaskSource
    results: Results
    budget: Budget
    missing: list[Item] = field(default_factory=list)

    def submission(self, item: Item) -> Submission:
        task = self.tasks.get(item.task_id)
        if item.table == "trivial":
            return submission(task, task.source + TRIVIAL.format(rule=RULES[item.what]), "cuda")
        code = correct_code(item.task_id) if item.what == "correct" else wrong_code(item.task_id)
        return submission(task, code, "triton")

    async def play(self, pool: PoolEvaluator, items: list[Item]) -> None:
        """As many at a time as there are judges."""
        waiting = deque(items)

        async def session() -> None:
            while waiting:
                item = waiting.popleft()
                if not self.budget.allows(item.table):
                    self.missing.append(item)
                    continue
                row = await evaluate(pool, self.submission(item), self.settings.trials, self.settings.timed_runs)
                self.budget.record(item.table, row["wall_s"])
                row |= {"table": item.table, "what": item.what, "repeat": item.repeat}
                self.results.add(row)
                print(describe(row), flush=True)

        await asyncio.gather(*(session() for _ in pool.status()["workers"]))


def describe(row: Row) -> str:
    """One line: what was sent, and what came of it."""
    time = f"{row['t_new_ms']:.4f}" if row["t_new_ms"] else ""
    note = row.get("feedback", "").split("\n")[0][:60] if row["outcome"] != "scored" else ""
    return f"{row['task_id'][:46]:46} {row['what']:12} {row['repeat']:2} {row['outcome']:16} {time:>9} {note}"


def kernels() -> Iterator[str]:
    """The tasks for which there is a kernel of ours and a wrong one."""
    wrong = json.loads((KERNELS / "wrong.json").read_text(encoding="utf-8"))
    for path in sorted(KERNELS.glob("level?/*.py")):
        if (task_id := f"{path.parent.name}/{path.stem}") in wrong:
            yield task_id


def plan(table: str, tasks: TaskSource, only: str, repeats: int, shard: tuple[int, int]) -> list[Item]:
    """What this shard plays; all of a task's in one shard."""
    known = set(tasks.task_ids)
    items: list[Item] = []
    paired = [task_id for task_id in kernels() if task_id in known and chosen(only, task_id)]
    for task_id in paired[shard[0] :: shard[1]]:
        for repeat in range(repeats) if table != "trivial" else ():
            items += [Item("pairs", task_id, what, repeat) for what in ("correct", "wrong")]
    scored = [task_id for task_id in tasks.task_ids if chosen(only, task_id) and in_a_split(tasks, task_id)]
    for task_id in scored[shard[0] :: shard[1]] if table != "pairs" else ():
        items += [Item("trivial", task_id, what, 0) for what in RULES]
    return items


def in_a_split(tasks: TaskSource, task_id: str) -> bool:
    """Whether the server would hand it out unasked: not level 4, and not what is not admitted."""
    return tasks.get(task_id).split is not None


def checks(rows: list[Row]) -> list[Check]:
    """Whether every correct kernel was paid, every wrong one and every trivial answer was not."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[row["table"], row["what"]][row["outcome"]] += 1
    answers = []
    for (table, what), outcomes in sorted(found.items()):
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        right = set(outcomes) == {"scored"} if what == "correct" else set(outcomes) <= VALUES
        answers.append({"name": f"{table}, {what}: {told}", "ok": right})
    tasks = {row["task_id"] for row in rows if row["table"] == "pairs"}
    if tasks:
        answers.append({"name": f"pairs: {len(tasks)} tasks (at least {LEAST_TASKS})", "ok": len(tasks) >= LEAST_TASKS})
    return answers


def main() -> int:
    """Play what is planned; 0 only if all of it came out as it must."""
    parser = options(__doc__, RESULT_FILE)
    parser.add_argument("--table", choices=["pairs", "trivial", "all"], default="all")
    parser.add_argument("--repeats", type=int, default=10, help="how often each kernel of a pair is submitted")
    arguments = parser.parse_args()
    settings = Settings(evaluator=arguments.evaluator)
    tasks = TaskSource.open(settings, arguments.evaluator)
    rows = earlier_rows(arguments.skip_done, arguments.evaluator)
    rows = [row for row in rows if row["outcome"] != "infrastructure"]
    done = {(row["table"], row["task_id"], row["what"], row["repeat"]) for row in rows}
    items = plan(arguments.table, tasks, arguments.only, arguments.repeats, arguments.shard)
    items = [item for item in items if item.key() not in done]
    results = Results(arguments.out / RESULT_FILE, arguments.evaluator, rows)
    budget = Budget(arguments.budget_s, {"pairs": FIRST_GUESS_S, "trivial": FIRST_GUESS_S})
    run = Run(settings, tasks, results, budget)
    for table in ("pairs", "trivial"):
        wanted = [item for item in items if item.table == table]
        if not wanted:
            continue
        pool = BenchmarkPool(settings, whole_pytorch=True) if table == "trivial" else PoolEvaluator(settings)
        pool.start()
        try:
            asyncio.run(run.play(pool, wanted))
        finally:
            pool.close()
    return finish(results, checks(results.rows), len(run.missing))


if __name__ == "__main__":
    sys.exit(main())
