"""What a server sustains: many sessions at a time submit good and broken kernels for minutes, every cache cold.

Starts the server as a subprocess, talks to it through `kernel_env.KernelEnv` alone, and reads /proc/stat and nvidia-smi
meanwhile. Touches no GPU itself. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from episode_server import server  # noqa: E402
from episodes import machine  # noqa: E402
from sustained_mix import SHARES, Mix, Submission  # noqa: E402

from kernel_env.client import KernelEnv  # noqa: E402
from kernel_env.errors import KernelEnvError  # noqa: E402
from kernel_env.models import KernelAction, KernelObservation  # noqa: E402

Row = dict[str, Any]

RESULT_FILE = "sustained.json"
# What one GPU in a host of 16 cores must reach.
LEAST_PER_HOUR = 2000.0
MOST_ALONE_S = 0.5
RUN_TIMEOUT_S = 15
WRITE_EVERY_S = 5.0
DRAIN_S = 90.0
FEEDBACK_CHARS = 300
# Those that others contain: "alone" and "alone_wait" are parts of "timing" and "baseline", "paused" of any.
PHASES = "static queue lease_wait prepare baseline share spawn compile correctness timing ghost".split()
PARTS = "paused alone_wait alone".split()


# ---------------------------------------------------------------- the machine meanwhile


class GpuMonitor:
    """What nvidia-smi says twice a second: utilisation in percent, SM clock in MHz, power in W. Nothing without it."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, list[float]]] = []
        query = "--query-gpu=utilization.gpu,clocks.sm,power.draw"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "500"]
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except OSError:
            self._process = None
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self.samples.append((time.monotonic(), [float(cell) for cell in line.split(",")]))

    def summary(self, begin: float, end: float) -> dict[str, float]:
        """Means over a window of time.monotonic(), of all GPUs."""
        found = [values for when, values in list(self.samples) if begin <= when <= end]
        if not found:
            return {}
        means = [statistics.fmean(column) for column in zip(*found, strict=True)]
        return {"gpu_busy": means[0] / 100, "sm_mhz": means[1], "power_w": means[2], "samples": len(found)}

    def close(self) -> None:
        """End nvidia-smi."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def cpu_times() -> tuple[float, float]:
    """Busy and total time of all cores since the host started, in the kernel's units."""
    values = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def get_status(url: str) -> dict[str, Any]:
    """GET /status."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/status", timeout=10) as response:
        return json.load(response)


# ---------------------------------------------------------------- the sessions


class Load:
    """The sessions, the rows of what they were answered, and when the counted time begins and ends."""

    def __init__(self, url: str, mix: Mix, seconds: float, end: float) -> None:
        self.rows: list[Row] = []
        self.broken_sessions: list[str] = []
        self.began: float | None = None
        self.ended: float | None = None
        self.url = url
        self._mix = mix
        self._seconds = seconds
        self._end = end
        self._warm_up = deque(mix.warm_up())
        self._warming = len(self._warm_up)

    @property
    def over(self) -> bool:
        """Whether no more is to be submitted."""
        now = time.monotonic()
        return now > self._end or (self.began is not None and now > self.began + self._seconds)

    async def session(self) -> None:
        """Submit one after the other until the time is over: what is left of the warm-up first, then the mix."""
        while not self.over:
            try:
                env = KernelEnv(base_url=self.url)
                async with env:
                    while not self.over:
                        if self._warm_up:
                            await self._play_warm_up(env, self._warm_up.popleft())
                        else:
                            await self._play(env, self._mix.draw())
            except (KernelEnvError, ConnectionError) as error:
                self.broken_sessions.append(f"{type(error).__name__}: {error}"[:FEEDBACK_CHARS])
                await asyncio.sleep(1.0)

    async def _play_warm_up(self, env: KernelEnv, submission: Submission) -> None:
        try:
            await self._play(env, submission)
        finally:
            self._warming -= 1
            if not self._warming:
                self.began = time.monotonic()

    async def _play(self, env: KernelEnv, submission: Submission) -> None:
        await env.reset(task_id=submission.task_id, language=submission.language)
        began = time.monotonic()
        result = await env.step(KernelAction(code=submission.code))
        self.rows.append(self._row(submission, result.observation, began))

    def _row(self, submission: Submission, observation: KernelObservation, began: float) -> Row:
        expected = observation.outcome in submission.expected
        return {
            "kind": submission.kind,
            "detail": submission.detail,
            "task_id": submission.task_id,
            "stage": observation.stage.value,
            "outcome": observation.outcome.value,
            "infra_code": observation.infra_code,
            "reward": observation.reward,
            "speedup": observation.speedup,
            "began": round(began, 3),
            "wall_s": round(time.monotonic() - began, 3),
            "phase_seconds": observation.phase_seconds,
            "expected": expected,
            "feedback": None if expected else observation.feedback[:FEEDBACK_CHARS],
        }

    def counted(self) -> list[Row]:
        """The rows of what was answered in the counted time."""
        if self.began is None:
            return []
        last = self.began + self._seconds
        return [row for row in self.rows if self.began <= row["began"] + row["wall_s"] <= last]


async def drive(load: Load, sessions: int, monitor: dict[str, Any], write: Callable[[], None]) -> None:
    """Run the sessions, note the machine's counters where the counted time begins and ends, and write meanwhile."""
    tasks = [asyncio.create_task(load.session()) for _ in range(sessions)]
    while not load.over:
        await asyncio.sleep(0.1)
        if load.began is not None and "cpu_0" not in monitor:
            monitor["cpu_0"], monitor["status_0"] = cpu_times(), await asyncio.to_thread(get_status, load.url)
            print(f"warm after {len(load.rows)} evaluations; counting", flush=True)
        if time.monotonic() > monitor.get("written", 0.0) + WRITE_EVERY_S:
            monitor["written"] = time.monotonic()
            write()
            print(f"{len(load.rows)} evaluations, {len(load.counted())} counted", flush=True)
    load.ended = time.monotonic()
    monitor["cpu_1"], monitor["status_1"] = cpu_times(), await asyncio.to_thread(get_status, load.url)
    _, late = await asyncio.wait(tasks, timeout=DRAIN_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- what comes out


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p90, p99 and how many; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    picked = {f"p{q}": round(ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))], 4) for q in (50, 90, 99)}
    return picked | {"n": len(ordered)}


def summarise(load: Load, monitor: dict[str, Any], gpu: GpuMonitor, gpus: int, seconds: float) -> dict[str, Any]:
    """Everything that the table says."""
    rows = load.counted()
    now = time.monotonic()
    began, ended = load.began or now, load.ended or now
    lasted = min(seconds, ended - began)
    hours = max(lasted, 1e-9) / 3600 * gpus
    phases = {name: [row["phase_seconds"].get(name) for row in rows] for name in PHASES + PARTS}
    spent = {name: [value for value in values if value is not None] for name, values in phases.items()}
    alone_rows = [row for row in rows if "alone" in row["phase_seconds"]]
    levels = sorted({row["task_id"].split("/")[0] for row in rows})
    details = sorted({row["detail"] for row in rows if row["kind"] == "broken"})
    shares = resources(monitor, gpu.summary(began, ended), spent, gpus, lasted)
    in_judge = {name: sum(spent[name]) for name in PHASES if name not in ("static", "queue")}
    in_judge |= {f"{name} (part)": sum(spent[name]) for name in PARTS}
    whole = sum(value for name, value in in_judge.items() if "part" not in name) or 1.0
    return {
        "counted_s": round(lasted, 1),
        "evaluations": len(rows),
        "per_hour_per_gpu": round(len(rows) / hours, 1),
        "per_hour_by_kind": {kind: round(sum(row["kind"] == kind for row in rows) / hours, 1) for kind in SHARES},
        "latency_s": {
            **{kind: quantiles(row["wall_s"] for row in rows if row["kind"] == kind) for kind in SHARES},
            **{f"- {name}": quantiles(row["wall_s"] for row in rows if row["detail"] == name) for name in details},
        },
        "phase_s": {name: quantiles(values) for name, values in spent.items() if values},
        "alone_s_by_level": {
            level: quantiles(row["phase_seconds"]["alone"] for row in alone_rows if row["task_id"].startswith(level))
            for level in levels
        },
        "shares": shares,
        "judge_time_shares": {name: round(value / whole, 3) for name, value in in_judge.items() if value},
        "gpu": gpu.summary(began, ended),
        "outcomes": dict(Counter(f"{row['detail']}: {row['outcome']}" for row in rows)),
        "unexpected": [row for row in load.rows if not row["expected"]],
        "infrastructure": dict(Counter(row["infra_code"] for row in load.rows if row["infra_code"])),
        "broken_sessions": load.broken_sessions,
    }


def resources(
    monitor: dict[str, Any], gpu: dict[str, float], spent: dict[str, list[float]], gpus: int, lasted: float
) -> dict[str, float]:
    """Which part of the counted time each thing was in use that could bound the rate."""
    found: dict[str, float] = {}
    if lasted <= 0 or "status_1" not in monitor:
        return found
    (busy_0, total_0), (busy_1, total_1) = monitor["cpu_0"], monitor["cpu_1"]
    found["CPU busy"] = (busy_1 - busy_0) / max(1.0, total_1 - total_0)
    if "gpu_busy" in gpu:
        found["GPU busy (nvidia-smi)"] = gpu["gpu_busy"]
    found["GPU held alone"] = sum(spent["alone"]) / (lasted * gpus)
    workers = len(monitor["status_1"]["workers"])
    if workers:
        occupied = sum(sum(spent[name]) for name in PHASES if name not in ("static", "queue"))
        found["judges occupied"] = occupied / (lasted * workers)
    return {name: round(value, 3) for name, value in found.items()}


def checks(summary: dict[str, Any], evaluator: str, seconds: float) -> list[dict[str, Any]]:
    """The conditions; the figures of merit are a GPU's."""
    found = [
        (f"{seconds:.0f} s were measured", summary["counted_s"] >= seconds - 1.0),
        ("every verdict is one that was expected", not summary["unexpected"]),
        ("no infrastructure fault", not summary["infrastructure"]),
        ("no session was lost", not summary["broken_sessions"]),
    ]
    if evaluator == "gpu":
        alone = summary["alone_s_by_level"].get("level1")
        found += [
            (f"at least {LEAST_PER_HOUR:.0f} evaluations an hour", summary["per_hour_per_gpu"] >= LEAST_PER_HOUR),
            (f"level 1 has the GPU alone for under {MOST_ALONE_S} s", bool(alone) and alone["p50"] < MOST_ALONE_S),
        ]
    return [{"name": name, "ok": ok} for name, ok in found]


def report(result: dict[str, Any]) -> int:
    """Print the table; 0 only if every check holds."""
    summary = result["summary"]
    print(f"\n{summary['evaluations']} evaluations in {summary['counted_s']} s, {result['sessions']} sessions")
    print(f"{summary['per_hour_per_gpu']:.0f} an hour and GPU: {summary['per_hour_by_kind']}")
    for title in ("latency_s", "phase_s", "alone_s_by_level"):
        print(f"\n{title:22} {'p50':>9} {'p90':>9} {'p99':>9} {'n':>6}")
        for name, found in summary[title].items():
            if found is not None:
                print(f"{name:22} {found['p50']:9.3f} {found['p90']:9.3f} {found['p99']:9.3f} {found['n']:6}")
    for title in ("shares", "judge_time_shares", "gpu", "outcomes", "infrastructure"):
        print(f"{title}: {summary[title]}")
    whole = {name: share for name, share in summary["judge_time_shares"].items() if "part" not in name}
    for title, found in (("what is used most", summary["shares"]), ("where judges spend most", whole)):
        if found:
            name = max(found, key=found.__getitem__)
            print(f"{title}: {name}, {found[name]:.0%}")
    for row in summary["unexpected"][:20]:
        why = row["infra_code"] or row["feedback"]
        print(f"unexpected: {row['detail']} {row['task_id']}: {row['outcome']} {why!r}")
    for check in result["checks"]:
        print(f"{'PASS' if check['ok'] else 'FAIL'} {check['name']}")
    return 0 if all(check["ok"] for check in result["checks"]) else 1


def main() -> int:
    """Run the load; the exit code is `report`'s."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {RESULT_FILE} and server.log")
    parser.add_argument("--evaluator", choices=["gpu", "cpu", "mock"], default="gpu")
    parser.add_argument("--sessions", type=int, default=32, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the counted time, after the warm-up")
    parser.add_argument("--seed", type=int, default=0, help="of the mix")
    parser.add_argument("--budget-s", type=float, default=540.0, help="submit nothing after this")
    arguments = parser.parse_args()
    # A time limit from outside must still end the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + arguments.budget_s
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    gpus = len(os.environ.get("KERNEL_ENV_GPUS", "0").split(",")) if arguments.evaluator == "gpu" else 1
    settings = {
        "KERNEL_ENV_EVALUATOR": arguments.evaluator,
        "KERNEL_ENV_RUN_TIMEOUT_S": str(RUN_TIMEOUT_S),
        "KERNEL_ENV_REWARD": "speedup",
        "KERNEL_ENV_MAX_SESSIONS": str(arguments.sessions + 8),
    }
    result: dict[str, Any] = {"evaluator": arguments.evaluator, "machine": machine(), "sessions": arguments.sessions}
    result["machine"]["cores"] = len(os.sched_getaffinity(0))
    monitor: dict[str, Any] = {}
    gpu = GpuMonitor()
    try:
        with server(settings, out / "server.log") as (url, status):
            result["server_status"] = status
            mix = Mix(arguments.evaluator, status["tasks"]["source"] == "kernelbench", arguments.seed)
            load = Load(url, mix, arguments.seconds, end)

            def write() -> None:
                result["summary"] = summarise(load, monitor, gpu, gpus, arguments.seconds)
                result["checks"] = checks(result["summary"], arguments.evaluator, arguments.seconds)
                result["rows"] = load.rows
                partial = out / f"{RESULT_FILE}.partial"
                partial.write_text(json.dumps(result) + "\n", encoding="utf-8")
                partial.replace(out / RESULT_FILE)

            asyncio.run(drive(load, arguments.sessions, monitor, write))
            write()
    except (RuntimeError, OSError) as error:
        print(f"FAIL {error}", flush=True)
        return 1
    finally:
        gpu.close()
    return report(result)


if __name__ == "__main__":
    sys.exit(main())
