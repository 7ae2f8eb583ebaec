"""Where the CPU time of evaluations goes: py-spy's samples of server, judge, zygote and candidates, by function.

Submits the built-in tasks' example kernels to the evaluator directly, under `py-spy record`, a program of its own that
must be on the path. Touches the GPU only through the evaluator.
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
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from episodes import machine  # noqa: E402

from server.pool import PoolEvaluator  # noqa: E402
from server.settings import Settings  # noqa: E402
from server.static_checks import check  # noqa: E402
from server.submission import evaluation_request  # noqa: E402
from server.tasks import TaskSource  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RESULT_FILE = "profile.json"
RATE_HZ = 200
TASKS = ("level1/19_ReLU", "level1/23_Softmax", "level1/40_LayerNorm", "level2/76_Gemm_Add_ReLU")
DEADLINE_S = 240.0
# A judge forks its candidates through the zygote, whose command line they keep.
ROLES = {"server.worker.judge": "judge", "server.worker.zygote": "zygote and candidates"}
SHOWN = 25


def submit(evaluator_name: str, evaluations: int) -> None:
    """Score so many submissions, each after its static checks, one at a time for each judge."""
    settings = Settings(evaluator=evaluator_name, kernelbench_dir=None)
    tasks = TaskSource.builtin(small=evaluator_name == "cpu")
    evaluator = PoolEvaluator(settings)
    evaluator.start()
    waiting = list(range(evaluations))

    async def session() -> None:
        while waiting:
            number = waiting.pop()
            task = tasks.get(TASKS[number % len(TASKS)])
            code = (ROOT / "examples" / f"{task.task_id}.py").read_text(encoding="utf-8") + f"# {number}\n"
            assert not check(code, "triton", cpu=evaluator_name == "cpu")
            request = evaluation_request(settings, uuid.uuid4().hex, task, "triton", code)
            verdict = (await evaluator.evaluate(request, DEADLINE_S)).verdict
            assert verdict.outcome == "scored", verdict

    async def everything() -> None:
        await asyncio.gather(*(session() for _ in evaluator.status()["workers"]))

    try:
        asyncio.run(everything())
    finally:
        evaluator.close()


def read(path: Path) -> dict[str, dict[str, Counter[str]]]:
    """py-spy's collapsed stacks: for each role the samples in each function alone, and in it and what it calls."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        # With --subprocesses, every process above it in the tree has a frame that starts the stack.
        processes = [frame for frame in frames if frame.startswith("process ")]
        functions = [frame for frame in frames if not frame.startswith("process ")]
        if not functions or not count.isdigit():
            continue
        command = processes[-1] if processes else ""
        role = next((name for module, name in ROLES.items() if module in command), "server")
        own = found.setdefault(role, {"self": Counter(), "total": Counter()})
        own["self"][functions[-1]] += int(count)
        for function in set(functions):
            own["total"][function] += int(count)
    return found


def main() -> int:
    """Record, sum up, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"directory for {RESULT_FILE}")
    parser.add_argument("--evaluator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--submit", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.submit:
        submit(arguments.evaluator, arguments.evaluations)
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    raw = arguments.out / "profile.txt"
    command = ["py-spy", "record", "--output", str(raw), "--format", "raw", "--rate", str(RATE_HZ), "--subprocesses"]
    # A process that py-spy has stopped cannot be told from one that a pause has.
    command += ["--nonblocking"]
    command += ["--", sys.executable, __file__, "--submit", "--out", str(arguments.out)]
    command += ["--evaluator", arguments.evaluator, "--evaluations", str(arguments.evaluations)]
    began = time.monotonic()
    # Its exit code is not always its child's.
    subprocess.run(command, cwd=ROOT, env=dict(os.environ), check=True)
    wall_s = time.monotonic() - began
    roles = read(raw)
    result = {"evaluator": arguments.evaluator, "evaluations": arguments.evaluations, "machine": machine()}
    result |= {"wall_s": round(wall_s, 1), "rate_hz": RATE_HZ, "roles": {}}
    for role, counters in sorted(roles.items()):
        cpu_s = sum(counters["self"].values()) / RATE_HZ
        print(f"\n{role}: {cpu_s:.1f} s of CPU, {cpu_s / arguments.evaluations:.3f} s each")
        summary = {"cpu_s": cpu_s}
        for sort, counter in counters.items():
            summary[sort] = {name: round(count / RATE_HZ, 3) for name, count in counter.most_common(SHOWN)}
        for name, seconds in summary["total"].items():
            print(f"  {seconds:8.2f} s {name}")
        result["roles"][role] = summary
    (arguments.out / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
