"""What side_by_side.py and timing_quality.py share: options, the result file, and evaluations by a pool of judges.

Touches the GPU only through the pool.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from episodes import machine  # noqa: E402

from server.pool import PoolEvaluator  # noqa: E402
from server.settings import Settings  # noqa: E402
from server.tasks import Task  # noqa: E402
from server.worker.protocol import Evaluate, TrialPlan  # noqa: E402

Row = dict[str, Any]
Check = dict[str, Any]

DEADLINE_S = 240.0
FEEDBACK_CHARS = 300
_VERDICT = (
    "stage outcome infra_code t_ref_ms t_new_ms t_new_spread t_new_interval_ms timed_runs timing_method t_event_ms "
    "t_wall_ms t_tolerance_ms phase_seconds"
).split()


class BenchmarkPool(PoolEvaluator):
    """A pool whose judges are benchmark_judge.py's, which explains the switches."""

    judge_module = "benchmarks.benchmark_judge"

    def __init__(
        self, settings: Settings, self_test: bool = False, every_run: bool = False, whole_pytorch: bool = False
    ) -> None:
        super().__init__(settings)
        switches = {"self_test": self_test, "every_run": every_run, "whole_pytorch": whole_pytorch}
        os.environ["BENCHMARK_JUDGE"] = json.dumps(switches)


@dataclass(frozen=True)
class Submission:
    """What is sent to a pool; `plans` are those of the task's admission."""

    task_id: str
    task_source: str
    code: str
    language: str
    plans: list[TrialPlan]


def submission(task: Task, code: str, language: str, note: str = "") -> Submission:
    """What a server would send. With another `note` the task is a new one to the judges."""
    source = f"{task.source}\n# {note}\n" if note else task.source
    plans = task.admission.plans if task.admission is not None else []
    return Submission(task.task_id, source, code, language, plans)


async def evaluate(pool: PoolEvaluator, submission: Submission, trials: int, timed_runs: int) -> Row:
    """One evaluation, as the caller saw it."""
    request = Evaluate(
        eval_id=uuid.uuid4().hex,
        task_id=submission.task_id,
        task_source=submission.task_source,
        code=submission.code,
        language=submission.language,
        plans=submission.plans,
        trials=trials,
        timed_runs=timed_runs,
    )
    began = time.monotonic()
    result = await pool.evaluate(request, DEADLINE_S)
    wall_s = time.monotonic() - began
    verdict = result.verdict
    row: Row = {"task_id": submission.task_id, "language": submission.language, "wall_s": round(wall_s, 3)}
    row |= {name: getattr(verdict, name) for name in _VERDICT}
    if verdict.outcome == "scored" and verdict.infra_detail:
        row |= json.loads(verdict.infra_detail)
        return row
    return row | {"feedback": (verdict.feedback or verdict.infra_detail)[:FEEDBACK_CHARS]}


@dataclass
class Budget:
    """The seconds this run may take, and the longest step of each sort so far."""

    total_s: float
    guesses_s: dict[str, float]
    began: float = field(default_factory=time.monotonic)

    def allows(self, sort: str) -> bool:
        """Whether a step as long as the longest of its sort still fits."""
        return self.total_s - (time.monotonic() - self.began) >= self.guesses_s[sort]

    def record(self, sort: str, wall_s: float) -> None:
        """Remember a step's length."""
        self.guesses_s[sort] = max(self.guesses_s[sort], wall_s)


class Results:
    """The rows so far and the file they are in, which is whole at every moment."""

    def __init__(self, path: Path, evaluator: str, rows: list[Row]) -> None:
        self.path = path
        self.rows = rows
        self.head: Row = {"evaluator": evaluator, "machine": machine()}
        self.commit = self.head["machine"]["commit"]

    def add(self, row: Row) -> None:
        self.rows.append(row | {"commit": self.commit})
        self.write([])

    def write(self, checks: list[Check]) -> None:
        partial = self.path.with_suffix(".partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        content = self.head | {"checks": checks, "rows": self.rows}
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)


def options(description: str | None, result_file: str) -> argparse.ArgumentParser:
    """The options that both programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {result_file}")
    parser.add_argument("--evaluator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--only", default="", metavar="A,B", help="only what has one of these in its name")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="i/n", help="only the i-th of n parts")
    parser.add_argument("--skip-done", type=Path, metavar="FILE", help="keep what this result file has in full")
    parser.add_argument("--budget-s", type=float, default=540.0, help="start nothing that would end after this")
    return parser


def earlier_rows(path: Path | None, evaluator: str) -> list[Row]:
    """The rows of an earlier result file that this commit may be judged by.

    Raises:
        SystemExit: another evaluator made it, or another commit.
    """
    if path is None:
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    commit = machine()["commit"]
    if earlier["evaluator"] != evaluator:
        raise SystemExit(f"{path} was made with the {earlier['evaluator']} evaluator")
    if any(row["commit"] != commit for row in earlier["rows"]):
        raise SystemExit(f"{path} was made for another commit than {commit}")
    return earlier["rows"]


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise argparse.ArgumentTypeError("write the shard as i/n with 1 <= i <= n")
    return int(index) - 1, int(count)


def finish(results: Results, checks: list[Check], missing: int) -> int:
    """Write the checks, print those that fail, and return the exit code."""
    checks = [*checks, {"name": f"all that was planned was measured ({missing} missing)", "ok": missing == 0}]
    results.write(checks)
    for check in checks:
        print(f"{'PASS' if check['ok'] else 'FAIL'} {check['name']}")
    return 0 if all(check["ok"] for check in checks) else 1
