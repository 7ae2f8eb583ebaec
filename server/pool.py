"""The evaluator that runs submissions: a few judge processes for each device, one evaluation at a time in each.

Never imports torch. A worker (server/pool_worker.py) owns each judge. Sessions wait in one queue; a job that met a
fault of ours goes to another worker once before the fault is reported. The judges of a GPU share it through its lease
(server/lease.py): only one of them times anything, and has it alone then.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from typing import Any

from server.evaluator import EvalResult, EvaluatorUnavailable
from server.jobs import Job, Queue, fault
from server.lease import Lease
from server.pool_worker import GRACE_S, START_TIMEOUT_S, Worker
from server.settings import Settings
from server.worker.protocol import DeviceInfo, Evaluate
from server.worker.tools import missing_tools

# The judge knows better than this process whose fault it is that the time is up.
VERDICT_GRACE_S = 3.0


class PoolEvaluator:
    """The `gpu` and `cpu` evaluators."""

    judge_module = "server.worker.judge"
    """What a judge's process runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = settings.evaluator
        self._queue = Queue()
        self._workers: list[Worker] = []
        self._leases: dict[int | None, Lease] = {}
        self._closed = False

    @property
    def device(self) -> DeviceInfo | None:
        return next((worker.device for worker in self._workers if worker.device is not None), None)

    def start(self) -> None:
        """Start the judges of each device and wait until all are ready.

        Raises:
            EvaluatorUnavailable: one did not start.
        """
        hint = "Set KERNEL_ENV_EVALUATOR=cpu (Linux, small tasks, real verdicts) or mock (no torch, made-up times)."
        if sys.platform != "linux":
            raise EvaluatorUnavailable(f"KERNEL_ENV_EVALUATOR={self.name} needs Linux. Set KERNEL_ENV_EVALUATOR=mock.")
        for package in ("torch", "triton"):
            if importlib.util.find_spec(package) is None:
                raise EvaluatorUnavailable(
                    f"KERNEL_ENV_EVALUATOR={self.name} needs {package}: install the extra '{self.name}'. Or: {hint}"
                )
        gpus: list[int | None] = list(self._settings.gpus) if self.name == "gpu" else [None]
        per_gpu = self._settings.judges_on_each(len(gpus))
        self._leases = leases = {gpu: Lease() for gpu in gpus}
        self._workers = [
            Worker(number, gpu, per_gpu * len(gpus), self._queue, leases[gpu], self._settings, self.judge_module)
            for number, gpu in enumerate(gpus * per_gpu)
        ]
        for worker in self._workers:
            try:
                worker.first_start.result(START_TIMEOUT_S + GRACE_S)
            except EvaluatorUnavailable as error:
                self.close()
                what = f"GPU {worker.gpu} (KERNEL_ENV_GPUS)" if worker.gpu is not None else "the CPU evaluator"
                raise EvaluatorUnavailable(f"{what} cannot be used: {error} {hint}") from error

    async def evaluate(self, request: Evaluate, deadline_s: float) -> EvalResult:
        """See server.evaluator.Evaluator.evaluate."""
        job = Job(request, time.monotonic() + deadline_s)
        self._queue.put(job)
        try:
            try:
                wait_s = min(deadline_s, self._settings.queue_timeout_s)
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(job.started)), wait_s)
            except TimeoutError:
                return self._drop(job, "queue_timeout", "no worker became free in time")
            try:
                remaining_s = job.deadline - time.monotonic()
                limit_s = max(0.0, remaining_s) + VERDICT_GRACE_S
                return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(job.result)), limit_s)
            except TimeoutError:
                return self._drop(job, "step_deadline", "the evaluation did not end within the step's deadline")
        except asyncio.CancelledError:
            self._drop(job, "cancelled", "")
            raise

    def _drop(self, job: Job, code: str, detail: str) -> EvalResult:
        """Give up on a job: free its worker and say why; that is the first fault where a second attempt never began."""
        job.cancelled_at = time.monotonic()
        verdict = fault(job.request, code, detail)
        if not self._queue.remove(job):
            for worker in self._workers:
                worker.cancel(job)
        elif job.retried and job.retried[-1].infra_code is not None and code != "cancelled":
            verdict = job.retried[-1]
        waited_s = job.queue_s if job.started.done() else time.monotonic() - job.created
        return EvalResult(verdict, self.device, max(1, job.attempts), waited_s, job.retried)

    def status(self) -> dict[str, Any]:
        kind = "cuda" if self.name == "gpu" else "cpu"
        return {
            "evaluator": self.name,
            "workers": [worker.status() for worker in self._workers],
            "queue_depth": len(self._queue),
            "lacks": {language: missing_tools(kind, language) for language in ("triton", "cuda")},
            "leases": [
                {
                    "gpu": gpu,
                    "holders": lease.holders(),
                    "used_seconds": lease.used_seconds(),
                    "age_seconds": lease.age_seconds(),
                }
                for gpu, lease in self._leases.items()
            ],
        }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.close()
        self._queue.close()
        for worker in self._workers:
            worker.join(GRACE_S)
