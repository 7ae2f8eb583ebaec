"""The evaluator that runs submissions: a few judge processes for each device, one evaluation at a time in each.

Never imports torch. A thread owns each judge: it starts it, gives it one job at a time, restarts it after a fault of
ours and gives the job to another worker once before it reports the fault. Sessions wait in one queue. The judges of a
GPU share it through its lease (server/lease.py): only one of them times anything, and has it alone then.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from server.evaluator import EvalResult, EvaluatorUnavailable
from server.jobs import Job, Queue, fault, resolve
from server.lease import Lease
from server.settings import Settings
from server.worker.connection import Connection, DeadlineExceeded, PeerClosed, PeerViolation
from server.worker.level import shortfall
from server.worker.protocol import (
    Cancel,
    DeviceInfo,
    Evaluate,
    Grant,
    JudgeReply,
    Pause,
    Paused,
    Ready,
    StartFailed,
    Verdict,
    Want,
)
from server.worker.trash import remove_tree

MAX_ATTEMPTS = 2
START_TIMEOUT_S = 180.0
# A judge that does not answer a cancellation, or a deadline that has passed, within this long is replaced.
GRACE_S = 20.0
JUDGE_EXIT_S = 8.0
BUDGET_MARGIN_S = 5.0
# The judge knows better than this process whose fault it is that the time is up.
VERDICT_GRACE_S = 3.0
_POLL_S = 0.5
_MAX_BACKOFF_S = 30.0
# What every judge takes for itself, and how much of what remains is handed out.
_JUDGE_BYTES = 1 << 30
_USABLE = 0.95


class _Worker:
    """One judge and the thread that owns it."""

    def __init__(
        self, number: int, gpu: int | None, judges: int, queue: Queue, lease: Lease, settings: Settings, module: str
    ) -> None:
        self.number = number
        self.gpu = gpu
        self._module = module
        self._judges = judges
        self._lease = lease
        self._settings = settings
        self.state = "starting"
        self.device: DeviceInfo | None = None
        self.evaluations = 0
        self.faults = 0
        self.first_start: Future[None] = Future()
        self._queue = queue
        self._process: subprocess.Popen[bytes] | None = None
        self._base: str | None = None
        self._connection: Connection | None = None
        self._sending = threading.Lock()
        self._stopping = threading.Lock()
        self._job: Job | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"worker-{number}", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        return {
            "worker": self.number,
            "gpu": self.gpu,
            "state": self.state,
            "device": self.device.name if self.device else None,
            "sandbox": self.device.sandbox if self.device else None,
            "evaluations": self.evaluations,
            "faults": self.faults,
        }

    def cancel(self, job: Job) -> None:
        """Tell the judge to drop `job` if it is the one it works on."""
        with self._sending:
            if self._job is job and self._connection is not None:
                with contextlib.suppress(PeerClosed, DeadlineExceeded):
                    self._connection.send(Cancel(job.request.eval_id), deadline=time.monotonic() + 1.0)

    def close(self) -> None:
        self._closing.set()
        job = self._job
        if job is not None:
            job.cancelled_at = job.cancelled_at or time.monotonic()
            self.cancel(job)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        self._stop_judge()

    def _run(self) -> None:
        backoff_s = 1.0
        while not self._closing.is_set():
            try:
                self._start_judge()
            except (EvaluatorUnavailable, OSError) as error:
                self._stop_judge()
                if not self.first_start.done():
                    self.state = "down"
                    if isinstance(error, OSError):
                        error = EvaluatorUnavailable(f"the judge could not be started: {error}")
                    self.first_start.set_exception(error)
                    return
                self.state = "down"
                self._closing.wait(backoff_s)
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
                continue
            backoff_s = 1.0
            if not self.first_start.done():
                self.first_start.set_result(None)
            self._queue.join(self.number)
            try:
                self._serve()
            except Exception:  # a worker that ends silently would leave its device idle for ever
                traceback.print_exc()
            self._queue.leave(self.number)
            self._stop_judge()

    def _serve(self) -> None:
        """Give the judge jobs until it is no longer healthy or the pool closes."""
        while not self._closing.is_set():
            self.state = "idle"
            job = self._queue.take(self.number, self._judge_lives)
            if job is None:
                return
            if job.cancelled_at is not None:
                resolve(job, fault(job.request, "cancelled", ""))
                continue
            self.state = "busy"
            verdict = self._evaluate(job)
            self.evaluations += 1
            healthy = verdict.infra_code in (None, "cancelled", "step_deadline")
            if not healthy:
                self.faults += 1
                job.avoid.add(self.number)
                if job.attempts < MAX_ATTEMPTS and job.cancelled_at is None and not self._closing.is_set():
                    self._queue.leave(self.number)
                    self._queue.put(job, front=True)
                    return
            resolve(job, verdict, self.device)
            if verdict.judge_unfit:
                self.faults += 1
                print(f"worker {self.number}: its judge is replaced: {verdict.judge_unfit}", file=sys.stderr)
            if not healthy or verdict.judge_unfit:
                return

    def _judge_lives(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def _evaluate(self, job: Job) -> Verdict:
        """The judge's verdict, or one of ours when it is lost."""
        assert self._connection is not None
        job.attempts += 1
        if not job.started.done():
            job.queue_s = time.monotonic() - job.created
            job.started.set_result(None)
        try:
            with self._sending:
                self._job = job
                left_s = max(0.0, job.deadline - time.monotonic())
                # A little less than the step has, so that the judge's own verdict arrives in time.
                request = msgspec.structs.replace(job.request, budget_s=left_s - min(BUDGET_MARGIN_S, left_s / 10))
                self._connection.send(request, deadline=time.monotonic() + GRACE_S)
            if job.cancelled_at is not None:
                self.cancel(job)  # it was dropped after it left the queue and before it was ours
            while True:
                try:
                    message = self._connection.recv(time.monotonic() + _POLL_S)
                except DeadlineExceeded:
                    now = time.monotonic()
                    overdue = job.cancelled_at is not None and now > job.cancelled_at + GRACE_S
                    if overdue or now > job.deadline + GRACE_S:
                        return fault(job.request, "worker_lost", "the judge stopped answering")
                    continue
                if isinstance(message, Want):
                    self._lease.want(self.number, message.alone, message.memory_bytes)
                elif isinstance(message, Paused):
                    self._lease.paused(self.number)
                elif isinstance(message, Verdict) and message.eval_id == job.request.eval_id:
                    return message
        except (PeerClosed, PeerViolation, DeadlineExceeded) as error:
            return fault(job.request, "worker_lost", f"the judge was lost: {error!r}")
        finally:
            with self._sending:
                self._job = None
            self._lease.release(self.number)

    def _tell(self, message: Grant | Pause) -> None:
        """Send the lease's word to the judge. One that is lost is noticed by the thread that reads from it."""
        with self._sending, contextlib.suppress(PeerClosed, DeadlineExceeded):
            if self._connection is not None:
                self._connection.send(message, deadline=time.monotonic() + 1.0)

    def _start_judge(self) -> None:
        self.state = "starting"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = dict(os.environ, PYTORCH_NVML_BASED_CUDA_CHECK="1")
        environment.pop("KERNEL_ENV_TOKEN", None)
        root = str(Path(__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpu)
        # Ours to remove, because a judge that is killed cannot.
        self._base = tempfile.mkdtemp(prefix="kernel_env-")
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", self._module, str(theirs.fileno())),
                    *("cpu" if self.gpu is None else "cuda", self._base),
                    *(str(self._settings.cache_dir.expanduser()), str(self._judges)),
                ],
                env=environment,
                # Python puts the working directory on its path, and what is on the path is shown to submissions.
                cwd=root,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection = Connection(ours, JudgeReply)
        try:
            message = self._connection.recv(time.monotonic() + START_TIMEOUT_S)
        except (PeerClosed, PeerViolation, DeadlineExceeded) as error:
            raise EvaluatorUnavailable(f"the judge did not start: {error!r}") from error
        if isinstance(message, StartFailed):
            raise EvaluatorUnavailable(message.reason)
        assert isinstance(message, Ready)
        if self._settings.sandbox == "required" and (missing := shortfall(message.device.sandbox)) is not None:
            raise EvaluatorUnavailable(
                f"KERNEL_ENV_SANDBOX=required, and the sandbox that this host allows ({message.device.sandbox}) lacks: "
                f"{missing}. Give the server what is missing, or set KERNEL_ENV_SANDBOX=available."
            )
        self.device = message.device
        if message.device.memory_bytes:
            self._lease.capacity_bytes = int((message.device.memory_bytes - self._judges * _JUDGE_BYTES) * _USABLE)
        self._lease.join(self.number, self._tell)

    def _stop_judge(self) -> None:
        """Close the judge's socket, on which it ends its children and itself; kill it when it does not."""
        with self._stopping:
            self._lease.leave(self.number)
            with self._sending:
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            if self._process is not None:
                try:
                    self._process.wait(JUDGE_EXIT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                # The zygote is of its group, and ends by itself unless it was stopped or hangs.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process = None
            if self._base is not None:
                remove_tree(self._base)
                self._base = None


class PoolEvaluator:
    """The `gpu` and `cpu` evaluators."""

    judge_module = "server.worker.judge"
    """What a judge's process runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = settings.evaluator
        self._queue = Queue()
        self._workers: list[_Worker] = []
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
            _Worker(number, gpu, per_gpu * len(gpus), self._queue, leases[gpu], self._settings, self.judge_module)
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
        """Give up on a job: free its worker and say why."""
        job.cancelled_at = time.monotonic()
        if not self._queue.remove(job):
            for worker in self._workers:
                worker.cancel(job)
        waited_s = job.queue_s if job.started.done() else time.monotonic() - job.created
        return EvalResult(fault(job.request, code, detail), self.device, max(1, job.attempts), waited_s)

    def status(self) -> dict[str, Any]:
        return {
            "evaluator": self.name,
            "workers": [worker.status() for worker in self._workers],
            "queue_depth": len(self._queue),
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
