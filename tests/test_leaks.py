"""What an evaluator leaves behind: benchmarks/leaks.py at a small count, and that it would see a leak."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_settings

from benchmarks.leaks import CYCLE, KINDS, MARK, Run, growth, look_once, own_directory
from server.pool import PoolEvaluator
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, TASKS

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@NEEDS_CPU_EVALUATOR
def test_evaluations_leave_no_descriptors_processes_or_files() -> None:
    with own_directory() as directory:
        settings = make_settings(evaluator="cpu", trials=1, timed_runs=3, cache_dir=directory / "cache")
        evaluator = PoolEvaluator(settings)
        evaluator.start()
        try:
            run = Run(evaluator, TASKS, directory, settings)
            asyncio.run(run.play(2 * len(CYCLE), len(CYCLE), len(CYCLE), lambda: True))
            faults = [worker["faults"] for worker in evaluator.status()["workers"]]
        finally:
            evaluator.close()
        left = list(directory.glob("kernel_env*"))
    assert run.unexpected == []
    assert {entry.partition(":")[0] for entry in run.outcomes} == set(KINDS)
    assert faults == [0]
    first, *later = run.samples
    counted = [name for name in first if not name.startswith(("rss", "gpu", "evaluations"))]
    # Not every host lets the others' be seen.
    assert {"fds server", "processes", "files", "threads judge", "threads zygote"} <= set(counted)
    for sample in later:
        assert {name: sample[name] for name in counted if sample[name] > first[name]} == {}
    assert left == []


@LINUX
def test_a_leak_is_seen() -> None:
    with own_directory() as directory:
        before = look_once(directory)
        (directory / "file").write_bytes(b"12345")
        shared = Path("/tmp", f"{MARK}test")
        shared.write_bytes(b"123")
        ours, theirs = socket.socketpair()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            after = look_once(directory)
        finally:
            child.communicate(b"\n")
            for end in (ours, theirs):
                end.close()
            os.unlink(shared)
    gained = {name: after[name] - before[name] for name in ("files", "bytes", "processes", "fds server")}
    # The third descriptor is the pipe to the child.
    assert gained == {"files": 2, "bytes": 8, "processes": 1, "fds server": 3}


def test_growth_is_judged_by_its_kind() -> None:
    samples = [
        {"evaluations": 100 * number, "fds judge": 5 + (number == 9), "files": 3, "rss judge": 300.0 + 0.29 * number}
        for number in range(10)
    ]
    found = {line["what"]: line for line in growth(samples)}
    assert not found["fds judge"]["ok"]
    assert found["files"]["ok"]
    assert found["rss judge"]["ok"]
    assert found["rss judge"]["per_1000"] == pytest.approx(2.9)
    for sample in samples:
        sample["rss judge"] = 300.0 + 0.31 * sample["evaluations"] / 100
    assert not {line["what"]: line for line in growth(samples)}["rss judge"]["ok"]
