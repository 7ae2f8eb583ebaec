"""Plays episodes of KernelBench's own tasks against a real server over WebSocket, and checks what it pays.

Starts the server as a subprocess, talks to it through `kernel_env.KernelEnv` alone, and writes a result file and the
server's log. Touches no GPU itself. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from episode_plan import Episode, chosen, passed, plan  # noqa: E402
from episode_server import server  # noqa: E402

from kernel_env.client import KernelEnv  # noqa: E402
from kernel_env.errors import KernelEnvError  # noqa: E402
from kernel_env.models import KernelAction, KernelObservation, Outcome  # noqa: E402

Row = dict[str, Any]

STEP_DEADLINE_S = 240.0
FEEDBACK_CHARS = 400
RUN_TIMEOUT_S = 15
# What a turn is expected to take before a longer one of its sort has been measured. The first call of forward gets
# another 30 s for compiling, so a kernel that never returns takes RUN_TIMEOUT_S + 30 s.
FIRST_GUESS_S = {"triton": 20.0, "cuda": 90.0, "never_returns": 60.0}
OBSERVED = (
    "correct trials_passed trials_total max_abs_error t_ref_ms t_new_ms speedup t_ref_spread t_new_spread timed_runs "
    "timing_method bound arithmetic_intensity t_min_ms roofline_frac ref_roofline_frac gpu phase_seconds"
).split()


class OutOfBudget(Exception):
    """The next turn would not fit into the time that is left."""


@dataclass
class Budget:
    """The seconds this run may take, and the longest turn of each sort so far."""

    total_s: float
    began: float = field(default_factory=time.monotonic)
    longest_s: dict[str, float] = field(default_factory=lambda: dict(FIRST_GUESS_S))

    def left_s(self) -> float:
        """Seconds left."""
        return self.total_s - (time.monotonic() - self.began)

    def require(self, sort: str) -> None:
        """Go on only if a turn as long as the longest one so far still fits.

        Raises:
            OutOfBudget: it does not.
        """
        if self.left_s() < self.longest_s[sort]:
            raise OutOfBudget

    def record(self, sort: str, wall_s: float) -> None:
        """Remember a turn's length."""
        self.longest_s[sort] = max(self.longest_s[sort], wall_s)


# ---------------------------------------------------------------- the machine


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, str | None]:
    """What the numbers were measured on. COMMIT names the commit where there is no git repository."""
    gpu, _, driver = (
        _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines() or [""]
    )[0].partition(", ")
    return {
        "gpu": gpu or None,
        "driver": driver or None,
        "torch": _version("torch"),
        "triton": _version("triton"),
        "python": platform.python_version(),
        "commit": os.environ.get("COMMIT") or _output("git", "rev-parse", "HEAD") or None,
    }


# ---------------------------------------------------------------- episodes


def _row(episode: Episode, kind: str, observation: KernelObservation, wall_s: float, commit: str | None) -> Row:
    values = observation.model_dump(mode="json")
    return {
        "episode": episode.name,
        "task_id": episode.task_id,
        "language": episode.language,
        "kind": kind,
        "stage": values["stage"],
        "outcome": values["outcome"],
        "infra_code": values["infra_code"],
        "reward": observation.reward,
        **{name: values[name] for name in OBSERVED},
        "wall_s": round(wall_s, 3),
        "feedback": observation.feedback[:FEEDBACK_CHARS],
        "commit": commit,
    }


def play(url: str, episode: Episode, budget: Budget, commit: str | None, add: Callable[[Row], None]) -> None:
    """One episode through a session of its own; each turn goes to `add` as soon as it is answered.

    Raises:
        OutOfBudget: before a turn that would not fit.
        KernelEnvError: the session broke.
    """
    budget.require(episode.language)
    with KernelEnv(base_url=url).sync() as env:
        step_deadline_s = max(1.0, min(STEP_DEADLINE_S, budget.left_s()))
        env.reset(task_id=episode.task_id, language=episode.language, step_deadline_s=step_deadline_s)
        for turn in episode.turns:
            sort = turn.kind if turn.kind in FIRST_GUESS_S else episode.language
            budget.require(sort)
            began = time.monotonic()
            observation = env.step(KernelAction(code=turn.code)).observation
            wall_s = time.monotonic() - began
            budget.record(sort, wall_s)
            row = _row(episode, turn.kind, observation, wall_s, commit)
            add(row)
            print(describe(row), flush=True)


def describe(row: Row) -> str:
    """One line of the table; blanks stand for what was not measured."""

    def number(name: str, width: int, digits: int) -> str:
        value = row[name]
        return " " * width if value is None else f"{value:{width}.{digits}f}"

    mark = {True: "PASS", False: "FAIL", None: "----"}[row.get("ok")]
    return (
        f"{mark} {row['episode'][:44]:44} {row['kind']:14} {row['stage'][:11]:11} {row['outcome'][:16]:16} "
        f"{number('reward', 7, 3)} {number('t_ref_ms', 9, 4)} {number('t_new_ms', 9, 4)} {number('speedup', 7, 2)} "
        f"{number('roofline_frac', 5, 2)} {row['wall_s']:6.1f}"
    )


HEADER = (
    f"     {'episode':44} {'turn':14} {'stage':11} {'outcome':16} {'reward':>7} {'t_ref_ms':>9} {'t_new_ms':>9} "
    f"{'speedup':>7} {'roof':>5} {'wall_s':>6}"
)


def checks(episodes: list[Episode], rows: list[Row], evaluator: str) -> list[dict[str, Any]]:
    """What had to happen, one entry a turn, and that no planned turn is missing."""
    played = {(row["episode"], row["kind"], row["order"]): row for row in rows}
    found: list[dict[str, Any]] = []
    missing = 0
    for episode in episodes:
        for order, turn in enumerate(episode.turns):
            row = played.get((episode.name, turn.kind, order))
            if row is None:
                missing += 1
                continue
            what = turn.expectation if evaluator != "mock" else f"{turn.kind} was answered (mock: nothing ran)"
            found.append({"name": f"{episode.name}: {what}", "ok": passed(turn.kind, row, evaluator)})
    found.append({"name": f"every planned turn was played ({missing} missing)", "ok": missing == 0})
    return found


def load_done(path: Path, episodes: list[Episode], evaluator: str) -> list[Row]:
    """The turns of an earlier result file that belong to episodes it holds in full, without faults of ours.

    Raises:
        SystemExit: another evaluator made the file.
    """
    earlier = json.loads(path.read_text())
    if earlier["evaluator"] != evaluator:
        raise SystemExit(f"{path} was made with the {earlier['evaluator']} evaluator")
    rows: list[Row] = earlier["turns"]
    done: list[Row] = []
    for episode in episodes:
        mine = [row for row in rows if row["episode"] == episode.name]
        if [row["kind"] for row in mine] == [turn.kind for turn in episode.turns]:
            if all(row["outcome"] != Outcome.INFRASTRUCTURE.value for row in mine):
                done += mine
    return done


def main() -> int:
    """Play what is planned; 0 only if every check holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for episodes.json and server.log")
    parser.add_argument("--evaluator", choices=["gpu", "mock"], default="gpu")
    parser.add_argument("--only", default="", metavar="A,B", help="only episodes with one of these in their name")
    parser.add_argument("--skip-done", type=Path, metavar="FILE", help="keep the finished episodes of this result file")
    parser.add_argument("--budget-s", type=float, default=500.0, help="start no turn that would end after this")
    arguments = parser.parse_args()
    # A time limit from outside must still end the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    budget = Budget(arguments.budget_s)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    episodes = [episode for episode in plan() if chosen(arguments.only, episode.name)]
    rows = load_done(arguments.skip_done, episodes, arguments.evaluator) if arguments.skip_done else []
    done = {row["episode"] for row in rows}
    settings = {
        "KERNEL_ENV_EVALUATOR": arguments.evaluator,
        "KERNEL_ENV_RUN_TIMEOUT_S": str(RUN_TIMEOUT_S),
        "KERNEL_ENV_REWARD": "speedup",
    }
    result: dict[str, Any] = {"evaluator": arguments.evaluator, "machine": machine(), "turns": rows, "checks": []}

    def write() -> None:
        result["checks"] = checks(episodes, rows, arguments.evaluator)
        partial = out / "episodes.json.partial"
        partial.write_text(json.dumps(result, indent=1) + "\n")
        partial.replace(out / "episodes.json")

    def add(row: Row) -> None:
        row["order"] = sum(other["episode"] == row["episode"] for other in rows)
        row["ok"] = passed(row["kind"], row, arguments.evaluator)
        rows.append(row)
        write()

    write()
    print(HEADER, flush=True)
    try:
        with server(settings, out / "server.log") as (url, status):
            result["server_status"] = status
            for episode in episodes:
                if episode.name in done:
                    continue
                try:
                    play(url, episode, budget, result["machine"]["commit"], add)
                except KernelEnvError as exc:
                    print(f"FAIL {episode.name}: {type(exc).__name__}: {exc}", flush=True)
    except OutOfBudget:
        print(f"stopped: the next turn would not fit into {arguments.budget_s:.0f} s", flush=True)
    except (RuntimeError, ConnectionError) as exc:
        print(f"FAIL {exc}", flush=True)
    finally:
        write()
    return report(rows, result["checks"])


def report(rows: list[Row], found: list[dict[str, Any]]) -> int:
    """Print the table and the counts; the exit code."""
    if any(row["timing_method"] == "mock" for row in rows):
        print("\nMOCK: nothing ran. PASS says that the turn was answered, and every number is made up.")
    print(f"\n{HEADER}")
    print("\n".join(describe(row) for row in rows))
    for check in found:
        if not check["ok"]:
            print(f"FAIL {check['name']}")
    good = sum(check["ok"] for check in found)
    print(f"{good} PASS, {len(found) - good} FAIL")
    return 0 if good == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
