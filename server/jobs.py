"""The jobs that wait for a worker, and the queue they wait in. Threads and futures only; never imports torch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from server.evaluator import EvalResult
from server.worker.protocol import DeviceInfo, Evaluate, Verdict

# How often an idle worker looks after its judge.
_LOOK_S = 1.0


@dataclass
class Job:
    """One evaluation on its way through the pool."""

    request: Evaluate
    deadline: float  # time.monotonic()
    created: float = field(default_factory=time.monotonic)
    started: Future[None] = field(default_factory=Future)
    result: Future[EvalResult] = field(default_factory=Future)
    attempts: int = 0
    signals: int = 0
    """How many of the attempts ended by a signal that anybody could have sent."""
    queue_s: float = 0.0
    avoid: set[int] = field(default_factory=set)
    cancelled_at: float | None = None
    retried: list[Verdict] = field(default_factory=list)
    """What the attempts came to that were not the submission's to answer for, and were followed by another."""


class Queue:
    """First come, first served; a job that failed on a worker goes to another one while there is one."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._workers: set[int] = set()
        self._closed = False

    def join(self, worker: int) -> None:
        with self._changed:
            self._workers.add(worker)
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        with self._changed:
            self._workers.discard(worker)
            self._changed.notify_all()

    def put(self, job: Job, front: bool = False) -> None:
        with self._changed:
            if self._closed:
                resolve(job, fault(job.request, "worker_lost", "the server is stopping"))
                return
            self._jobs.appendleft(job) if front else self._jobs.append(job)
            self._changed.notify_all()

    def take(self, worker: int, lives: Callable[[], bool] = lambda: True) -> Job | None:
        """The next job for this worker; None when the pool closes, or when the judge does not live any more."""
        with self._changed:
            while not self._closed and lives():
                for job in self._jobs:
                    if worker not in job.avoid or not (self._workers - job.avoid):
                        self._jobs.remove(job)
                        return job
                self._changed.wait(_LOOK_S)
            return None

    def remove(self, job: Job) -> bool:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                return True
            return False

    def __len__(self) -> int:
        return len(self._jobs)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            jobs, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        for job in jobs:
            resolve(job, fault(job.request, "worker_lost", "the server is stopping"))


def resolve(job: Job, verdict: Verdict, device: DeviceInfo | None = None) -> None:
    """Answer whoever waits for the job, unless that has been done."""
    result = EvalResult(verdict, device, max(1, job.attempts), job.queue_s, job.retried)
    for future, value in ((job.started, None), (job.result, result)):
        if not future.done():
            future.set_result(value)  # type: ignore[arg-type]


def fault(request: Evaluate, code: str, detail: str) -> Verdict:
    """The verdict for a fault of ours; `code` is a value of kernel_env.models.InfraCode."""
    return Verdict(request.eval_id, "compile", "infrastructure", infra_code=code, infra_detail=detail)
