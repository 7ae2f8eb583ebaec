"""What the rows of timing_quality.py come to: tables, and the conditions that must hold. Pure but for printing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from bench_common import Check, Row

from server.worker.timing import CONFIDENCE

SELF, BENCH, LOAD = "self", "do_bench", "load"
QUIET, LOADED = "quiet", "loaded"

# A reference's time in ms above which its speedup against itself must be 1, to MOST_SELF_ERROR at the 95th percentile.
LEAST_MS = 0.3
MOST_SELF_ERROR = 0.01
MOST_BENCH_ERROR = 0.03
MOST_SHIFT = 0.01
# Kernels whose time may differ from do_bench's by more, and why.
EXPLAINED: dict[str, str] = {}


def percentile(values: Sequence[float], share: float) -> float:
    """NaN for no values."""
    return float(numpy.percentile(values, 100 * share)) if values else math.nan


# ---------------------------------------------------------------- the reference against itself


@dataclass(frozen=True)
class SelfTest:
    """One task's evaluations of its own reference.

    `errors` are |speedup - 1|; `covered` of `intervals` stated intervals held the median of all runs. A task is
    launch-bound when the host takes longer to queue its work than the GPU takes to do it.
    """

    task_id: str
    sort: str
    t_ref_ms: float
    queued_ms: float
    errors: list[float]
    drift: float
    intervals: int
    covered: int


SORTS = (f"over {LEAST_MS} ms", f"up to {LEAST_MS} ms", "launch-bound")


def self_test(task_id: str, rows: list[Row]) -> SelfTest:
    """Of the scored rows of one task."""
    t_ref_ms = statistics.median(row["t_ref_ms"] for row in rows)
    queued_ms = statistics.median(value for row in rows for value in row["queued_ms"])
    truth_ms = statistics.median(value for row in rows for value in row["events_ms"])
    found = [row["t_new_interval_ms"] for row in rows if row["t_new_interval_ms"] is not None]
    times_ms = [row["t_new_ms"] for row in rows]
    return SelfTest(
        task_id,
        SORTS[2] if queued_ms > t_ref_ms else SORTS[0] if t_ref_ms > LEAST_MS else SORTS[1],
        t_ref_ms,
        queued_ms,
        [abs(row["t_ref_ms"] / row["t_new_ms"] - 1) for row in rows],
        (max(times_ms) - min(times_ms)) / truth_ms,
        len(found),
        sum(low <= truth_ms <= high for low, high in found),
    )


def self_tests(rows: list[Row]) -> list[SelfTest]:
    """Of every task that was scored."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] == SELF and row["outcome"] == "scored":
            by_task.setdefault(row["task_id"], []).append(row)
    return [self_test(task_id, mine) for task_id, mine in by_task.items()]


def least_coverage(intervals: int) -> float:
    """The least share of `intervals` that must hold the truth: what is claimed, less two standard errors."""
    return CONFIDENCE - 2 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / intervals)


def _report_self(rows: list[Row]) -> list[Check]:
    tests = self_tests(rows)
    if not tests:
        return []
    heads = ("95th", "largest", "drift", "covered")
    print(f"\n{'reference against itself':58} {'t_ref_ms':>9} {'queued_ms':>9} " + " ".join(f"{h:>8}" for h in heads))
    for test in sorted(tests, key=lambda test: (SORTS.index(test.sort), test.task_id)):
        errors = (percentile(test.errors, 0.95), max(test.errors), test.drift)
        print(
            f"{test.task_id[:44]:44} {test.sort:13} {test.t_ref_ms:9.4f} {test.queued_ms:9.4f} "
            f"{' '.join(f'{error:8.2%}' for error in errors)} {test.covered:5}/{test.intervals}"
        )
    known = any(test.sort == SORTS[0] for test in tests)
    found: list[Check] = [{"name": f"there are tasks {SORTS[0]} that are not launch-bound", "ok": known}]
    for sort in SORTS:
        mine = [test for test in tests if test.sort == sort]
        errors = [error for test in mine for error in test.errors]
        if not mine:
            continue
        intervals, covered = sum(test.intervals for test in mine), sum(test.covered for test in mine)
        shares = ", ".join(f"{share:.0%}: {percentile(errors, share):.3%}" for share in (0.5, 0.9, 0.95, 0.99))
        print(f"{sort}: {len(mine)} tasks, |speedup - 1| {shares}; intervals hold the truth {covered}/{intervals}")
        if sort != SORTS[0]:
            continue
        worst = percentile(errors, 0.95)
        name = f"{sort}: |speedup - 1| at the 95th percentile is {worst:.3%}, at most {MOST_SELF_ERROR:.0%}"
        found.append({"name": name, "ok": worst <= MOST_SELF_ERROR})
        if intervals:
            least = least_coverage(intervals)
            name = f"{sort}: {covered / intervals:.1%} of the intervals hold the truth, at least {least:.1%}"
            found.append({"name": name, "ok": covered / intervals >= least})
    failed = [row for row in rows if row["part"] == SELF and row["outcome"] != "scored"]
    for row in failed:
        print(f"not scored: {row['task_id']}: {row['outcome']} {row['infra_code'] or ''} {row['feedback'][:200]}")
    return [*found, {"name": f"every reference was scored ({len(failed)} were not)", "ok": not failed}]


# ---------------------------------------------------------------- do_bench


def bench_error(row: Row) -> float:
    """How far our median lies from do_bench's, as a share of it."""
    return statistics.median(row["ours_ms"]) / statistics.median(row["do_bench_ms"]) - 1


def _report_bench(rows: list[Row]) -> list[Check]:
    mine = [row for row in rows if row["part"] == BENCH]
    if not mine:
        return []
    print(f"\n{'against triton.testing.do_bench':58} {'ours_ms':>9} {'bench_ms':>9} {'differ':>8}")
    found: list[Check] = []
    for row in mine:
        if row.get("error") or not row["ours_ms"]:
            what = row.get("error") or "it was not scored"
            found.append({"name": f"{row['task_id']} against do_bench: {what[-200:]}", "ok": False})
            continue
        error, reason = bench_error(row), EXPLAINED.get(row["task_id"], "")
        medians = statistics.median(row["ours_ms"]), statistics.median(row["do_bench_ms"])
        print(f"{row['task_id'][:58]:58} {medians[0]:9.4f} {medians[1]:9.4f} {error:+8.2%} {reason}")
        name = f"{row['task_id']}: {error:+.2%} against do_bench, at most {MOST_BENCH_ERROR:.0%} or explained"
        found.append({"name": name, "ok": abs(error) <= MOST_BENCH_ERROR or bool(reason)})
    return found


# ---------------------------------------------------------------- beside compilers


def shifts(rows: list[Row]) -> dict[str, tuple[float, float, float]]:
    """By task: the median time on a quiet machine and beside compilers in ms, and the shift as a share."""
    found: dict[str, tuple[float, float, float]] = {}
    mine = [row for row in rows if row["part"] == LOAD and row["outcome"] == "scored"]
    for task_id in dict.fromkeys(row["task_id"] for row in mine):
        quiet, loaded = (
            [row["t_new_ms"] for row in mine if row["task_id"] == task_id and row["condition"] == condition]
            for condition in (QUIET, LOADED)
        )
        if quiet and loaded:
            before_ms, beside_ms = statistics.median(quiet), statistics.median(loaded)
            found[task_id] = before_ms, beside_ms, beside_ms / before_ms - 1
    return found


def _report_load(rows: list[Row], sessions: int) -> list[Check]:
    mine = [row for row in rows if row["part"] == LOAD]
    if not mine:
        return []
    print(f"\n{'beside ' + str(sessions) + ' sessions that compile':58} {'quiet_ms':>9} {'load_ms':>9} {'shift':>8}")
    found: list[Check] = []
    for task_id, (before_ms, beside_ms, shift) in shifts(mine).items():
        print(f"{task_id[:58]:58} {before_ms:9.4f} {beside_ms:9.4f} {shift:+8.2%}")
        name = f"{task_id}: {shift:+.2%} beside compilers, at most {MOST_SHIFT:.0%}"
        found.append({"name": name, "ok": abs(shift) <= MOST_SHIFT})
    failed = sum(row["outcome"] != "scored" for row in mine)
    found.append({"name": f"every measurement beside compilers was scored ({failed} were not)", "ok": not failed})
    loaded = [row for row in mine if row["condition"] == LOADED]
    compiled = max((row["compiled"] for row in loaded), default=0)
    broken = max((row["not_compiled"] for row in loaded), default=0)
    busy = {c: statistics.median(row["cpu_busy"] for row in mine if row["condition"] == c) for c in (QUIET, LOADED)}
    print(f"{compiled} compilations meanwhile; the CPUs were busy {busy[QUIET]:.0%} and {busy[LOADED]:.0%} of the time")
    name = f"at least {sessions} compilations ran meanwhile ({compiled}), and none failed ({broken})"
    return [*found, {"name": name, "ok": compiled >= sessions and broken == 0}]


# ---------------------------------------------------------------- the judge's clock


def _report_clocks(rows: list[Row]) -> None:
    """How far the judge's clock lay from the candidates' own times, by the tolerance that decides."""
    timed = [row for row in rows if row.get("t_tolerance_ms")]
    if not timed:
        return
    apart = [row["t_wall_ms"] - row["t_event_ms"] for row in timed]
    shares = [abs(gap) / row["t_tolerance_ms"] for gap, row in zip(apart, timed, strict=True)]
    points = ", ".join(f"{share:.0%}: {percentile(shares, share):.2f}" for share in (0.5, 0.9, 0.95, 0.99, 1.0))
    doubted = sum(row["timing_method"] == "wall" for row in timed)
    print(f"\njudge's clock and events apart, in tolerances ({len(timed)} evaluations): {points}")
    print(f"in ms: {min(apart):+.4f} to {max(apart):+.4f}; the events were not believed {doubted} times")


def report(rows: list[Row], sessions: int) -> list[Check]:
    """Print the tables; the conditions."""
    found = _report_self(rows) + _report_bench(rows) + _report_load(rows, sessions)
    _report_clocks([*rows, *(each for row in rows for each in row.get("evaluations", []))])
    return found
