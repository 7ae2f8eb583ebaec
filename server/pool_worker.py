"""One judge of the pool and the thread that owns it: starts it, gives it one job at a time, replaces it after a fault.

Touches the judge's process and its directory; never imports torch. A worker with several faults in a row is out for a
while, and a judge in a new process then shows whether it works again.
"""

from __future__ import annotations

import contextlib
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

from server.evaluator import EvaluatorUnavailable
from server.jobs import Job, Queue, fault, resolve
from server.lease import Lease
from server.settings import Settings
from server.worker.children import is_stopped
from server.worker.connection import Connection, DeadlineExceeded, PeerClosed, PeerViolation
from server.worker.level import shortfall
from server.worker.protocol import (
    Cancel,
    DeviceInfo,
    Grant,
    JudgeReply,
    Pause,
    Paused,
    Ready,
    StartFailed,
    Verdict,
    Want,
    capacity_bytes,
)
from server.worker.trash import remove_tree
from server.worker.users import end_processes_of

MAX_ATTEMPTS = 2
START_TIMEOUT_S = 180.0
# A judge that does not answer a cancellation, or a deadline that has passed, within this long is replaced.
GRACE_S = 20.0
JUDGE_EXIT_S = 8.0
BUDGET_MARGIN_S = 5.0
_POLL_S = 0.5
# A judge that somebody stopped is given up after this long, while there is time to try elsewhere.
STOPPED_S = 3.0
RETIRE_AFTER = 3
"""Faults in a row, after which a worker is out before its judge is started again: a second, then twice as long."""
_MAX_BACKOFF_S = 30.0
# Faults of the host that a new judge does not mend, and that concern few submissions.
_NOT_THE_WORKERS = frozenset({"compiler_missing"})


class Worker:
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
        self.in_a_row = 0
        self.last_fault = ""
        self.first_start: Future[None] = Future()
        self._queue = queue
        self._process: subprocess.Popen[bytes] | None = None
        self._base: str | None = None
        self._connection: Connection | None = None
        self._stopped_since: float | None = None
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
            "faults_in_a_row": self.in_a_row,
            "last_fault": self.last_fault or None,
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
                self._note_fault("start")
                self._rest(after=1)
                continue
            if not self.first_start.done():
                self.first_start.set_result(None)
            self._queue.join(self.number)
            try:
                self._serve()
            except Exception:  # a worker that ends silently would leave its device idle for ever
                traceback.print_exc()
            self.state = "starting"
            self._queue.leave(self.number)
            self._stop_judge()
            self._rest(after=RETIRE_AFTER)

    def _note_fault(self, code: str) -> None:
        self.faults += 1
        self.in_a_row += 1
        self.last_fault = code

    def _rest(self, after: int) -> None:
        """Be out for a while after so many faults in a row; longer with each one more."""
        if self.in_a_row >= after:
            self.state = "down"
            self._closing.wait(min(2.0 ** (self.in_a_row - after), _MAX_BACKOFF_S))

    def _serve(self) -> None:
        """Give the judge jobs until it is no longer healthy or the pool closes."""
        while not self._closing.is_set():
            self.state = "idle"
            job = self._queue.take(self.number, self._judge_lives)
            if job is None:
                if not self._closing.is_set():
                    self._note_fault("worker_lost")
                return
            if job.cancelled_at is not None:
                resolve(job, fault(job.request, "cancelled", ""))
                continue
            self.state = "busy"
            verdict = self._evaluate(job)
            self.evaluations += 1
            code = verdict.infra_code
            fit = code in (None, "cancelled", "step_deadline", *_NOT_THE_WORKERS) and not verdict.judge_unfit
            if verdict.judge_unfit:
                print(f"worker {self.number}: its judge is replaced: {verdict.judge_unfit}", file=sys.stderr)
            if not fit:
                self._note_fault(code or "judge_unfit")
                self._queue.leave(self.number)
            elif code is None:
                self.in_a_row = 0
            if self._again(job, verdict):
                job.avoid.add(self.number)
                job.retried.append(verdict)
                self._queue.put(job, front=True)
            else:
                resolve(job, verdict, self.device)
            if not fit:
                return

    def _again(self, job: Job, verdict: Verdict) -> bool:
        """Whether another attempt is to decide.

        A signal that anybody could have sent counts as the submission's own when it comes again; and where there is no
        time to see whether it does, or to wait until shortly before the deadline would make each one ours. Signals and
        faults of ours are counted apart: a fault does not make the signal after it one that came again.
        """
        if job.cancelled_at is not None or self._closing.is_set():
            return False
        if verdict.infra_code is None:
            job.signals += verdict.signal is not None
            left_s = job.deadline - time.monotonic()
            again = verdict.signal is not None and job.signals < MAX_ATTEMPTS
            return again and left_s > sum(verdict.phase_seconds.values())
        once = job.attempts - job.signals < MAX_ATTEMPTS
        return once and verdict.infra_code not in ("cancelled", "step_deadline")

    def _judge_lives(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None and not is_stopped(process.pid)

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
                    message = self._receive()
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
            if self._was_overdue():
                return fault(job.request, "gpu_lost", "the judge waited in vain for its GPU to finish")
            return fault(job.request, "worker_lost", f"the judge was lost: {error!r}")
        finally:
            with self._sending:
                self._job = None
            self._lease.release(self.number)

    def _was_overdue(self) -> bool:
        """Whether the judge ended as server/worker/overdue.py ends it."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0) == -signal.SIGALRM
        return False

    def _receive(self) -> JudgeReply:
        """The judge's next message.

        Raises:
            DeadlineExceeded: there is none for a moment.
            PeerClosed, PeerViolation: the judge is lost, or somebody has stopped it.
        """
        assert self._connection is not None and self._process is not None
        try:
            message = self._connection.recv(time.monotonic() + _POLL_S)
        except DeadlineExceeded:
            if not is_stopped(self._process.pid):
                self._stopped_since = None
            elif self._stopped_since is None:
                self._stopped_since = time.monotonic()
            elif time.monotonic() > self._stopped_since + STOPPED_S:
                raise PeerClosed("it was stopped") from None
            raise
        return message

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
                stdout=2,  # standard output is for the evaluation log alone; a reference may print
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection = Connection(ours, JudgeReply)
        self._stopped_since = None
        try:
            end = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    message = self._receive()
                    break
                except DeadlineExceeded:
                    if time.monotonic() > end:
                        raise
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
            self._lease.capacity_bytes = capacity_bytes(message.device.memory_bytes, self._judges)
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
                if is_stopped(self._process.pid):
                    self._process.kill()
                try:
                    self._process.wait(JUDGE_EXIT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                # The zygote is of its group, and ends by itself unless it was stopped or hangs.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                _reap_group(self._process.pid)
                end_processes_of(self._process.pid)
                self._process = None
            if self._base is not None:
                remove_tree(self._base)
                self._base = None


def _reap_group(group: int) -> None:
    """As process 1 of a container, the server has inherited a lost judge's children."""
    end = time.monotonic() + JUDGE_EXIT_S
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0] != 0 or time.monotonic() < end:
            time.sleep(0.01)
