"""Submits every attack and every honest kernel of tests/adversarial to a real evaluator, and says what it paid.

Goes to the evaluator directly, past the static checks and the server, with the built-in tasks in full size;
KERNEL_ENV_GPUS names the devices. The result file is rewritten after every submission, and --skip-done goes on from
it. Touches the GPU only through the evaluator.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from server.pool import PoolEvaluator  # noqa: E402
from server.scoring import score  # noqa: E402
from server.settings import Settings  # noqa: E402
from server.tasks import TaskSource  # noqa: E402
from server.worker.protocol import Evaluate  # noqa: E402
from tests.adversarial.honest_registry import HONEST, Honest  # noqa: E402
from tests.adversarial.registry import ATTACKS, Attack, Evaluator  # noqa: E402

Row = dict[str, Any]

RESULT_FILE = "adversarial.json"
DEADLINE_S = 240.0
FEEDBACK_CHARS = 300
# What an evaluation is taken to need before a longer one of its language has been seen.
FIRST_GUESS_S = {"triton": 12.0, "cuda": 100.0}
# Two runs of one kernel differ by up to 7% in time, which is 0.1 in reward.
REWARD_NOISE = 0.1
TIME_NOISE = 0.03


@dataclass(frozen=True)
class Item:
    """One evaluation to make: the submission, and which time it is submitted."""

    name: str
    repeat: int
    submission: Attack | Honest


@dataclass
class Budget:
    """The seconds this run may take, and the longest evaluation of each language so far."""

    total_s: float
    began: float = field(default_factory=time.monotonic)
    longest_s: dict[str, float] = field(default_factory=lambda: dict(FIRST_GUESS_S))

    def allows(self, language: str, times: int) -> bool:
        """Whether `times` evaluations as long as the longest so far still fit."""
        return self.total_s - (time.monotonic() - self.began) >= self.longest_s[language] * times

    def record(self, language: str, wall_s: float) -> None:
        """Remember an evaluation's length."""
        self.longest_s[language] = max(self.longest_s[language], wall_s)


def plan(table: str, evaluator: Evaluator, only: str, repeats: int, shard: tuple[int, int]) -> list[Item]:
    """What this shard submits: Triton first, because load_inline takes a minute."""
    chosen: list[Item] = []
    if table in ("attacks", "all"):
        usable_attacks = [attack for attack in ATTACKS if evaluator in attack.on]
        chosen += [Item(attack.name, repeat, attack) for repeat in range(repeats) for attack in usable_attacks]
    if table in ("honest", "all"):
        usable = [kernel for kernel in HONEST if (kernel.cpu if evaluator == "cpu" else not kernel.cpu_only)]
        chosen += [Item(kernel.name, repeat, kernel) for repeat in range(repeats) for kernel in usable]
    chosen = [item for item in chosen if only in item.name]
    return sorted(chosen[shard[0] :: shard[1]], key=lambda item: item.submission.language == "cuda")


class Arena:
    """The evaluator, the honest kernels' scores on it, and the rows so far."""

    def __init__(self, settings: Settings, out: Path, budget: Budget, rows: list[Row]) -> None:
        self.settings = settings
        self.evaluator = PoolEvaluator(settings)
        self.kind: Evaluator = "cpu" if settings.evaluator == "cpu" else "gpu"
        self.rows = rows
        self._tasks = TaskSource.builtin(small=self.kind == "cpu")
        self._out = out
        self._budget = budget
        self._yardsticks: dict[tuple[str, str], asyncio.Task[Row]] = {}
        self.machine: dict[str, Any] = {"commit": _commit()}

    def start(self) -> None:
        """Start the judges."""
        self.evaluator.start()
        if self.evaluator.device is not None:
            self.machine |= asdict_struct(self.evaluator.device)

    async def submit(self, code: str, task_id: str, language: str) -> Row:
        """Score one submission."""
        request = Evaluate(
            eval_id=uuid.uuid4().hex,
            task_id=task_id,
            task_source=self._tasks.get(task_id).source,
            code=code,
            language=language,
            trials=self.settings.trials,
            timed_runs=self.settings.timed_runs,
            run_timeout_s=20.0,
        )
        began = time.monotonic()
        result = await self.evaluator.evaluate(request, DEADLINE_S)
        verdict = result.verdict
        try:
            found = score(verdict, self.settings, result.device, task_id)
            outcome, reward, feedback = found.fields["outcome"], found.reward, found.fields["feedback"]
        except ValueError as error:  # a verdict that contradicts itself: the server would call it a fault of ours
            outcome, reward, feedback = "infrastructure", None, repr(error)
        wall_s = time.monotonic() - began
        self._budget.record(language, wall_s)
        return {
            "task_id": task_id,
            "language": language,
            "stage": verdict.stage,
            "outcome": str(outcome),
            "infra_code": verdict.infra_code,
            "infra_detail": verdict.infra_detail[-FEEDBACK_CHARS:],
            "reward": reward,
            "t_ref_ms": verdict.t_ref_ms,
            "t_new_ms": verdict.t_new_ms,
            "t_new_spread": verdict.t_new_spread,
            "timing_method": verdict.timing_method,
            "t_event_ms": verdict.t_event_ms,
            "t_wall_ms": verdict.t_wall_ms,
            "t_tolerance_ms": verdict.t_tolerance_ms,
            "max_abs_error": verdict.max_abs_error,
            "timed_runs": verdict.timed_runs,
            "attempts": result.attempts,
            "phase_seconds": verdict.phase_seconds,
            "wall_s": round(wall_s, 2),
            "feedback": feedback[:FEEDBACK_CHARS],
        }

    async def yardstick(self, attack: Attack) -> Row:
        """The honest kernel that an attack is compared with, measured once in this run."""
        key = (attack.task_id, attack.honest_twin())
        if key not in self._yardsticks:
            code = key[1] or (ROOT / "examples" / f"{attack.task_id}.py").read_text(encoding="utf-8")
            self._yardsticks[key] = asyncio.ensure_future(self.submit(code, attack.task_id, "triton"))
        return await self._yardsticks[key]

    async def play(self, item: Item) -> None:
        """Submit one item, judge what happened, and write the result file."""
        submission = item.submission
        if isinstance(submission, Honest):
            row = await self.submit(submission.code, submission.task_id, submission.language)
            paid = row["reward"] is not None and row["reward"] > 0
            row |= {"table": "honest", "what": "paid" if paid else "REJECTED", "style": submission.style}
        else:
            row = await self._attack(submission)
        row |= {"name": item.name, "repeat": item.repeat, "commit": self.machine["commit"]}
        self.rows.append(row)
        self.write()
        print(describe(row), flush=True)

    async def _attack(self, attack: Attack) -> Row:
        assert self.evaluator.device is not None
        base = {"table": "attacks", "row": attack.row, "must": attack.must, "defence": attack.defence}
        if attack.needs and not set(attack.needs) & set(self.evaluator.device.sandbox.split("+")):
            blank = dict.fromkeys(("stage", "outcome", "reward", "t_new_ms"), None)
            return base | blank | {"task_id": attack.task_id, "language": attack.language, "what": "skipped"}
        honest = await self.yardstick(attack)
        tries = [await self.submit(attack.code, attack.task_id, attack.language) for _ in range(attack.times)]
        worst = max(tries, key=lambda row: 9.0 if row["reward"] is None else row["reward"])
        stopped = is_stopped(attack, worst, honest)
        reason = attack.open_reason(self.kind)
        if reason:
            what = "stopped, though expected to get through" if stopped else "expected to get through"
        else:
            what = "stopped" if stopped else "GOT THROUGH"
        gain = honest["t_new_ms"] / worst["t_new_ms"] if honest["t_new_ms"] and worst["t_new_ms"] else None
        more = {"what": what, "open": reason, "honest_t_new_ms": honest["t_new_ms"]}
        return base | worst | more | {"honest_reward": honest["reward"], "gain": gain}

    def write(self) -> None:
        """The result file, whole at every moment."""
        result = {"evaluator": self.kind, "machine": self.machine, "counts": counts(self.rows), "rows": self.rows}
        partial = self._out / f"{RESULT_FILE}.partial"
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._out / RESULT_FILE)


def is_stopped(attack: Attack, row: Row, honest: Row) -> bool:
    """Whether an attack got no more than the registry lets it. A fault of ours counts as getting through."""
    if row["reward"] is None:
        return False
    if row["reward"] == 0.0:
        return True
    if attack.must == "rejected" or not honest["reward"]:
        return False
    if attack.must == "not_paid_more":
        return row["reward"] <= honest["reward"] + REWARD_NOISE
    return row["t_new_ms"] >= honest["t_new_ms"] * (1 - TIME_NOISE) - (row["t_tolerance_ms"] or 0.0)


def asdict_struct(struct: Any) -> dict[str, Any]:
    """The fields of a msgspec struct."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _commit() -> str | None:
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe(row: Row) -> str:
    """One line of the table; blanks stand for what was not measured."""

    def number(name: str, width: int, digits: int) -> str:
        value = row.get(name)
        return " " * width if value is None else f"{value:{width}.{digits}f}"

    return (
        f"{row['name'][:34]:34} {row.get('row', ''):>4} {row['stage'] or '':11} {row['outcome'] or '':16} "
        f"{number('reward', 6, 2)} {number('t_new_ms', 9, 4)} {number('honest_t_new_ms', 9, 4)} {number('gain', 6, 2)} "
        f"{row['what']:24} {row.get('defence') or row.get('style', '')}"
    )


HEADER = (
    f"{'name':34} {'row':>4} {'stage':11} {'outcome':16} {'reward':>6} {'t_new_ms':>9} {'honest':>9} {'gain':>6} "
    f"{'what':24} defence or style"
)


def counts(rows: list[Row]) -> dict[str, dict[str, int]]:
    """How many rows of each table came out how."""
    return {table: dict(Counter(r["what"] for r in rows if r["table"] == table)) for table in ("attacks", "honest")}


def report(rows: list[Row], missing: int) -> int:
    """Print the table and the counts; the exit code."""
    print(f"\n{HEADER}")
    print("\n".join(describe(row) for row in sorted(rows, key=lambda row: (row["table"], row["name"]))))
    for table, found in counts(rows).items():
        print(f"{table}: {', '.join(f'{count} {what}' for what, count in sorted(found.items())) or 'none'}")
    print(f"{missing} of this shard's submissions were not played")
    return int(missing > 0 or any(row["what"] in ("GOT THROUGH", "REJECTED") for row in rows))


async def run(arena: Arena, items: list[Item], budget: Budget) -> int:
    """Play the items, one at a time for each judge; how many did not fit into the budget."""
    waiting = deque(items)

    async def worker() -> None:
        while waiting:
            item = waiting.popleft()
            times = item.submission.times + 1 if isinstance(item.submission, Attack) else 1
            if budget.allows(item.submission.language, times):
                await arena.play(item)
            else:
                missing.append(item)

    missing: list[Item] = []
    await asyncio.gather(*(worker() for _ in arena.evaluator.status()["workers"]))
    return len(missing)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise argparse.ArgumentTypeError("write the shard as i/n with 1 <= i <= n")
    return int(index) - 1, int(count)


def main() -> int:
    """Submit what is planned; 0 only if all of it was played and came out as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {RESULT_FILE}")
    parser.add_argument("--evaluator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--table", choices=["attacks", "honest", "all"], default="all")
    parser.add_argument("--only", default="", metavar="SUBSTR", help="only submissions whose name contains this")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="i/n", help="only the i-th of n parts")
    parser.add_argument("--repeats", type=int, default=1, help="how often each is submitted")
    parser.add_argument("--skip-done", type=Path, metavar="FILE", help="keep the rows of this result file")
    parser.add_argument("--budget-s", type=float, default=500.0, help="start nothing that would end after this")
    arguments = parser.parse_args()

    budget = Budget(arguments.budget_s)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = json.loads(arguments.skip_done.read_text())["rows"] if arguments.skip_done else []
    rows = [row for row in rows if row["what"] != "skipped" and not row["infra_code"]]
    items = plan(arguments.table, arguments.evaluator, arguments.only, arguments.repeats, arguments.shard)
    done = {(row["table"], row["name"], row["repeat"]) for row in rows}
    items = [
        item
        for item in items
        if ("attacks" if isinstance(item.submission, Attack) else "honest", item.name, item.repeat) not in done
    ]
    settings = Settings(evaluator=arguments.evaluator, reward="speedup")
    arena = Arena(settings, arguments.out, budget, rows)
    arena.start()
    try:
        print(HEADER, flush=True)
        missing = asyncio.run(run(arena, items, budget))
    finally:
        arena.evaluator.close()
        arena.write()
    return report(rows, missing)


if __name__ == "__main__":
    sys.exit(main())
