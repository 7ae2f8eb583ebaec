"""What an evaluator leaves behind after thousands of good and bad submissions: memory, descriptors, processes, files.

Goes to the evaluator directly, past the static checks and the server. Runs in a temporary directory of its own, and
reads /proc and nvidia-smi. The result file is rewritten after every sample. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from server.pool import PoolEvaluator  # noqa: E402
from server.settings import Settings  # noqa: E402
from server.tasks import TaskSource  # noqa: E402
from server.worker.children import descendants  # noqa: E402
from server.worker.protocol import Evaluate  # noqa: E402

Sample = dict[str, Any]

RESULT_FILE = "leaks.json"
TASKS = ("level1/19_ReLU", "level1/40_LayerNorm", "level1/95_CrossEntropyLoss")
DEADLINE_S = 120.0
SETTLE_S = 20.0
CANCEL_S = 0.3
# In the names of the files that submissions leave where others could see them.
MARK = f"kernel_env-leak-{os.getpid()}-"
SHARED = ("/dev/shm", "/tmp", "/var/tmp")
# What may be gained in 1,000 evaluations; the rest may not grow at all.
MAY_GROW = {"rss": 3.0, "gpu": 8.0}
UNITS = {"rss": "MiB", "gpu": "MiB", "bytes": "B"}


@dataclass(frozen=True)
class Kind:
    """A way for a submission to end: what is put in front of its forward, or at its end, and the outcomes that may
    come of it."""

    outcomes: tuple[str, ...]
    forward: str = "pass"
    module: str = ""
    result: str = "out"


LITTER = f"""\
import os, socket, time
kept = []
for directory in (".", *{SHARED!r}):
    for number in range(20):
        try:
            with open(f"{{directory}}/{MARK}{{os.getpid()}}-{{number}}", "w") as handle:
                handle.write("x" * 10_000)
        except OSError:
            pass
for number in range(20):
    kept.append(os.open("/dev/null", os.O_RDONLY))
try:
    kept.append(socket.socketpair())
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(1000)
except OSError:
    pass
"""
KINDS = {
    "good": Kind(("scored",)),
    "wrong": Kind(("wrong_values",), result="out.zero_()"),
    "raises": Kind(("runtime_error",), forward='raise ValueError("on purpose")'),
    "crashes": Kind(("crashed",), forward="os.kill(os.getpid(), signal.SIGSEGV)"),
    "exits": Kind(("exited",), forward="os._exit(0)"),
    "litters": Kind(("scored",), module=LITTER),
    "takes memory": Kind(("out_of_memory",), forward="torch.empty(1 << 44, device=arguments[0].device)"),
    "prints": Kind(("output_limit",), forward='print("x" * (20 << 20))'),
    "never ends": Kind(("timeout",), module="while True:\n    pass"),
    "is cancelled": Kind(("cancelled",), forward="time.sleep(1000)"),
}
CYCLE = (
    *("good", "crashes", "good", "wrong", "litters", "good", "exits"),
    *("good", "takes memory", "is cancelled", "raises", "prints", "never ends"),
)
_WRAPPER = """

import os, signal, time
_inner = ModelNew.forward


def _outer(self, *arguments):
    {forward}
    out = _inner(self, *arguments)
    return {result}


ModelNew.forward = _outer
{module}
"""


def source(kind: str, task_id: str) -> str:
    """A submission of this kind: the example for the task, with a mishap around its forward. No two are alike."""
    code = (ROOT / "examples" / f"{task_id}.py").read_text(encoding="utf-8")
    what = KINDS[kind]
    if kind != "good":
        code += _WRAPPER.format(forward=what.forward, result=what.result, module=what.module)
    return f"{code}\n# {uuid.uuid4().hex}\n"


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """A directory for all temporary files of this process and of its children."""
    with tempfile.TemporaryDirectory(prefix="kernel_env-leaks-") as name:
        os.chmod(name, 0o711)  # submissions run as another user, below it
        before = os.environ.get("TMPDIR"), tempfile.tempdir
        os.environ["TMPDIR"], tempfile.tempdir = name, None
        try:
            yield Path(name)
        finally:
            os.environ.pop("TMPDIR")
            if before[0] is not None:
                os.environ["TMPDIR"] = before[0]
            tempfile.tempdir = before[1]


# ---------------------------------------------------------------- what is looked at


def _role(pid: int) -> str | None:
    if pid == os.getpid():
        return "server"
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for role in ("judge", "zygote"):
            if b"server.worker." + role.encode() in words:
                return role
    return None


def look_once(directory: Path) -> Sample:
    """Everything that could grow, at this moment; what may not be read is not in it."""
    pids = [os.getpid(), *descendants(os.getpid())]
    sample: Sample = {"processes": len(pids)}
    for pid in pids:
        role = _role(pid)
        # A process that the zygote forked looks like it.
        if role is None or (role == "zygote" and _role(_parent(pid)) != "judge"):
            continue
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        mebibytes = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        sample[f"rss {role}"] = round(sample.get(f"rss {role}", 0.0) + mebibytes, 2)
        with contextlib.suppress(PermissionError):  # of the judge and the zygote only who may trace them sees it
            sample[f"fds {role}"] = sample.get(f"fds {role}", 0) + len(os.listdir(f"/proc/{pid}/fd"))
        sample[f"threads {role}"] = sample.get(f"threads {role}", 0) + len(os.listdir(f"/proc/{pid}/task"))
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    for shared in map(Path, SHARED):
        files += shared.glob(f"{MARK}*")
    sample["files"] = len(files)
    sample["directories"] = sum(path.is_dir() for path in directory.rglob("*"))
    sample["bytes"] = sum(path.lstat().st_size for path in files)
    return sample


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _gpu_mebibytes() -> int | None:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        return sum(int(line) for line in text.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


async def look(evaluator: PoolEvaluator, directory: Path) -> Sample:
    """A sample once all judges are idle and nothing changes any more."""
    end = time.monotonic() + SETTLE_S
    last: Sample = {}
    alike = 0
    while alike < 3 and time.monotonic() < end:
        await asyncio.sleep(0.05)
        if any(worker["state"] != "idle" for worker in evaluator.status()["workers"]):
            alike = 0
            continue
        try:
            now = look_once(directory)
        except (FileNotFoundError, ProcessLookupError):  # it went while it was looked at
            alike = 0
            continue
        steady = {name: value for name, value in now.items() if not name.startswith("rss")}
        alike = alike + 1 if steady == {name: last.get(name) for name in steady} else 0
        last = now
    gpu = _gpu_mebibytes()
    return last | ({} if gpu is None else {"gpu": gpu})


# ---------------------------------------------------------------- the run


class Run:
    """One evaluator, the samples so far, and how the submissions came out."""

    def __init__(self, evaluator: PoolEvaluator, tasks: TaskSource, directory: Path, settings: Settings) -> None:
        self.samples: list[Sample] = []
        self.outcomes: Counter[str] = Counter()
        self.unexpected: list[dict[str, str]] = []
        self._evaluator = evaluator
        self._tasks = tasks
        self._directory = directory
        self._settings = settings
        self._number = 0

    async def play(self, evaluations: int, every: int, warm_up: int, goes_on: Callable[[], bool]) -> None:
        """Warm up, then take a sample, and one more after each `every` evaluations, while `goes_on`."""
        await self._submit(warm_up)
        for done in range(0, evaluations + 1, every):
            await self._submit(every if done else 0)
            self.samples.append({"evaluations": done} | await look(self._evaluator, self._directory))
            if not goes_on():
                return

    async def _submit(self, count: int) -> None:
        """So many submissions, two in the queue for each judge."""
        room = asyncio.Semaphore(2 * len(self._evaluator.status()["workers"]))
        first, self._number = self._number, self._number + count

        async def one(number: int) -> None:
            async with room:
                await self._one(CYCLE[number % len(CYCLE)], TASKS[number % len(TASKS)])

        await asyncio.gather(*(one(number) for number in range(first, first + count)))

    async def _one(self, kind: str, task_id: str) -> None:
        settings = self._settings
        request = Evaluate(
            eval_id=uuid.uuid4().hex,
            task_id=task_id,
            task_source=self._tasks.get(task_id).source,
            code=source(kind, task_id),
            trials=settings.trials,
            timed_runs=settings.timed_runs,
            compile_timeout_s=0.3 if kind == "never ends" else settings.compile_timeout_s,
        )
        evaluation = self._evaluator.evaluate(request, DEADLINE_S)
        try:
            result = await asyncio.wait_for(evaluation, CANCEL_S if kind == "is cancelled" else None)
            outcome, detail = result.verdict.outcome, result.verdict.infra_detail or result.verdict.feedback
        except TimeoutError:
            outcome, detail = "cancelled", ""
        self.outcomes[f"{kind}: {outcome}"] += 1
        if outcome not in KINDS[kind].outcomes:
            self.unexpected.append({"kind": kind, "task_id": task_id, "outcome": outcome, "detail": detail[-500:]})


def slope(points: list[tuple[float, float]]) -> float:
    """Of the least-squares line through the points."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def growth(samples: list[Sample]) -> list[dict[str, Any]]:
    """For each thing that was looked at: its means in the first and the last fifth, its slope, and whether it grew."""
    found: list[dict[str, Any]] = []
    fifth = max(1, len(samples) // 5)
    for name in [name for name in samples[0] if name != "evaluations"]:
        values = [float(sample[name]) for sample in samples]
        per_1000 = 1000 * slope([(sample["evaluations"], sample[name]) for sample in samples])
        kind = name.split()[0]
        if kind in MAY_GROW:
            bound, ok = MAY_GROW[kind], per_1000 <= MAY_GROW[kind]
        else:
            bound, ok = 0.0, max(values[-fifth:]) <= max(values[:fifth])
        line = {"what": name, "unit": UNITS.get(kind, ""), "first": round(sum(values[:fifth]) / fifth, 2)}
        line |= {"last": round(sum(values[-fifth:]) / fifth, 2), "most": max(values), "per_1000": round(per_1000, 3)}
        found.append(line | {"bound_per_1000": bound, "ok": ok})
    return found


def report(result: dict[str, Any]) -> int:
    """Print the table; 0 only if nothing grew, all came out as it must, and all was played."""
    print(f"\n{'':18} {'first fifth':>14} {'last fifth':>14} {'most':>14} {'per 1,000':>10} {'allowed':>8}")
    for line in result["growth"]:
        print(
            f"{'PASS' if line['ok'] else 'FAIL'} {line['what']:13} {line['first']:14.2f} {line['last']:14.2f} "
            f"{line['most']:14.2f} {line['per_1000']:10.3f} {line['bound_per_1000']:8.1f} {line['unit']}"
        )
    print(", ".join(f"{count} {what}" for what, count in sorted(result["outcomes"].items())))
    for row in result["unexpected"][:20]:
        print(f"FAIL unexpected: {row}")
    print(f"{result['done']} of {result['wanted']} evaluations, {result['faults']} faults of ours")
    good = all(line["ok"] for line in result["growth"]) and not result["unexpected"] and not result["faults"]
    return 0 if good and result["done"] == result["wanted"] else 1


def _commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return os.environ.get("COMMIT") or done.stdout.strip() or None


def main() -> int:
    """Submit what is planned; the exit code is `report`'s."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {RESULT_FILE}")
    parser.add_argument("--evaluator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--evaluations", type=int, default=2000, help="after the warm-up")
    parser.add_argument("--every", type=int, default=100, help="evaluations between two samples")
    parser.add_argument("--warm-up", type=int, default=100, help="evaluations before the first sample")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="take no further sample after this")
    arguments = parser.parse_args()
    # A time limit from outside must still end the judges.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + arguments.budget_s
    arguments.out.mkdir(parents=True, exist_ok=True)
    with own_directory() as directory:
        settings = Settings(evaluator=arguments.evaluator, cache_dir=directory / "cache")
        evaluator = PoolEvaluator(settings)
        evaluator.start()
        run = Run(evaluator, TaskSource.builtin(small=arguments.evaluator == "cpu"), directory, settings)
        wanted = arguments.evaluations // arguments.every * arguments.every
        result: dict[str, Any] = {"evaluator": arguments.evaluator, "wanted": wanted, "warm_up": arguments.warm_up}
        result["machine"] = {"commit": _commit(), "cores": len(os.sched_getaffinity(0))}
        result["machine"] |= msgspec.structs.asdict(evaluator.device) if evaluator.device is not None else {}

        def goes_on() -> bool:
            result["samples"], result["growth"] = run.samples, growth(run.samples)
            result["outcomes"], result["unexpected"] = run.outcomes, run.unexpected
            result["done"] = run.samples[-1]["evaluations"]
            result["faults"] = sum(worker["faults"] for worker in evaluator.status()["workers"])
            partial = arguments.out / f"{RESULT_FILE}.partial"
            partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            partial.replace(arguments.out / RESULT_FILE)
            print(json.dumps(run.samples[-1]), flush=True)
            return time.monotonic() < end

        try:
            asyncio.run(run.play(wanted, arguments.every, arguments.warm_up, goes_on))
        finally:
            evaluator.close()
    return report(result)


if __name__ == "__main__":
    sys.exit(main())
