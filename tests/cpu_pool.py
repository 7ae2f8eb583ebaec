"""A real evaluator on the CPU for tests: started once for a module, asked synchronously."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import WAIT_S, make_settings

from server.evaluator import EvalResult
from server.pool import PoolEvaluator
from server.tasks import TaskSource
from server.worker.protocol import Evaluate
from tests.cpu_submissions import TASK

AVAILABLE = sys.platform == "linux" and all(importlib.util.find_spec(name) for name in ("torch", "triton"))
NEEDS_CPU_EVALUATOR = pytest.mark.skipif(not AVAILABLE, reason="the cpu evaluator needs Linux, torch and triton")
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
NEEDS_ROOT = pytest.mark.skipif(not AS_ROOT, reason="submissions get a user of their own where the server is root")

TASKS = TaskSource.builtin(small=True)


def request_for(code: str, task_id: str = TASK, source: str | None = None, **values: Any) -> Evaluate:
    """A request to score `code`, with fewer trials and timed calls than a server asks for."""
    values = {"trials": 2, "timed_runs": 3, **values}
    return Evaluate(uuid.uuid4().hex, task_id, source or TASKS.get(task_id).source, code, **values)


class Pool:
    """A started PoolEvaluator with one worker."""

    def __init__(self, **settings: Any) -> None:
        self.settings = make_settings(evaluator="cpu", **settings)
        self.evaluator = PoolEvaluator(self.settings)
        self.evaluator.start()

    def score(self, code: str, task_id: str = TASK, deadline_s: float = 4 * WAIT_S, **values: Any) -> EvalResult:
        """The result for one submission."""
        return asyncio.run(self.evaluator.evaluate(request_for(code, task_id, **values), deadline_s))

    def judge_pid(self) -> int | None:
        """The judge's process id, None while there is none."""
        process = self.evaluator._workers[0]._process
        return process.pid if process is not None else None

    def processes(self) -> list[int]:
        """The judge and everything below it."""
        pid = self.judge_pid()
        return [] if pid is None else [pid, *descendants(pid)]

    def zygote_pid(self) -> int | None:
        """The process id of the judge's only child."""
        judge = self.judge_pid()
        return None if judge is None else next((pid for pid in descendants(judge) if parent(pid) == judge), None)

    def candidate_pid(self) -> int | None:
        """The process that runs a submission, or a reference that is being timed; None between evaluations."""
        if self.evaluator.status()["workers"][0]["state"] != "busy":
            return None
        # It has a session of its own, as the judge has, and the zygote's other children have not.
        return next((pid for pid in self.processes()[1:] if _stat(pid)[3:4] == [b"%d" % pid]), None)


@contextlib.contextmanager
def open_pool(**settings: Any) -> Iterator[Pool]:
    """A pool that is closed afterwards."""
    pool = Pool(**settings)
    try:
        yield pool
    finally:
        pool.evaluator.close()


def _stat(pid: int) -> list[bytes]:
    """State, parent, process group, session, ... of a process; empty when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as handle:
        return handle.read().rsplit(b")", 1)[1].split()
    return []


def parent(pid: int) -> int | None:
    """The parent of a process, None when it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def descendants(root: int) -> list[int]:
    """Every process below `root`, nearest first."""
    parents = {int(name): parent(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found = [root]
    for known in found:
        found += [pid for pid, above in parents.items() if above == known]
    return found[1:]


def alive(pid: int) -> bool:
    """Whether a process runs: zombies do not."""
    return bool(_stat(pid)) and _stat(pid)[:1] not in ([b"Z"], [b"X"])


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`, asked again and again; fails when it takes too long."""
    end = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.01)
    return value
