"""The judge: a long-lived trusted process, one for each device, that scores one submission at a time for the server.

It alone holds references, seeds, expected outputs and the clock. It speaks to the server over a Unix socket (the
messages of protocol.py), forks candidates through its zygote, and ends when the server's socket closes.

    python -m server.worker.judge FD cuda|cpu DIRECTORY CACHE JUDGES

DIRECTORY is empty and becomes the parent of the candidates' own; CACHE keeps baselines; JUDGES share this machine.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import time
import traceback
from collections import OrderedDict
from pathlib import Path

import torch

from server.text import bound, scrub_paths
from server.worker import extension_kit, overdue, sandbox
from server.worker.baselines import BaselineCache, Record
from server.worker.calls import Host, Progress, TaskUnscorable
from server.worker.connection import Connection, PeerClosed
from server.worker.device import Device, create_device
from server.worker.ended import causes
from server.worker.evaluation import (
    Baseline,
    Score,
    check_ghost,
    evaluate_submission,
    measure_baseline,
)
from server.worker.extension_kit import Kit
from server.worker.faults import is_device_out_of_memory, shortage
from server.worker.guard import warm_up
from server.worker.lease import Cancelled, GpuLease, InfrastructureFault, ServerGone
from server.worker.process import SubmissionFailed, Zygote
from server.worker.protocol import Evaluate, JudgeRequest, Ready, StartFailed, Verdict, capacity_bytes
from server.worker.task_context import TaskContext, task_key
from server.worker.task_module import TaskError
from server.worker.timing import Timing
from server.worker.tools import missed
from server.worker.trash import Trash, remove_tree

MAX_CACHED_TASKS = 64
MAX_FEEDBACK_CHARS = 16_000
# Of the disk: a submission that finds less could not compile, which would look like its own fault.
MIN_FREE_BYTES = 64 << 20
# Of the device's memory, for a task whose needs are not known yet.
_FIRST_SHARE = 4
_DOES_NOT_FIT = "the reference does not fit into this device's memory"
_CROWDED = "another program holds the device's memory"


class Judge:
    """Scores submissions on one device. Not to be used after a fault of its own: the server replaces it then."""

    def __init__(self, server: Connection, kind: str, base: str, cache: Path, judges: int) -> None:
        self._server = server
        self._device: Device = create_device(kind)
        # Readable by nobody else; the candidates' own directories below it are.
        self._base = base
        os.chmod(self._base, 0o711)
        capability = None
        if kind == "cuda":
            major, minor = torch.cuda.get_device_capability()
            capability = f"{major}.{minor}"
        self._kit = _start_kit(cache, capability) if capability is not None else None
        self._zygote = Zygote(kind, capability, extension_kit.for_zygote(self._kit, judges))
        warm_up()
        self._device.health()  # opens NVML
        self._triton_seed = _prepare_triton(self._base, self._device) if kind == "cuda" else None
        self._zygote.wait_ready()
        self._device.is_quiet()  # learns what quiet is
        self._lease = GpuLease(server, self._device)
        self._host = Host(self._device, self._lease, self._zygote, base, self._triton_seed, Trash(), judges)
        self._info = self._device.info(self._zygote.sandbox)
        # Other work on the host changes the CPU's times from hour to hour.
        self._baselines = BaselineCache(cache if kind == "cuda" else None, self._info, self._device.identity())
        self._tasks: OrderedDict[str, TaskContext] = OrderedDict()

    def run(self) -> None:
        """Serve until the server is gone."""
        # What the start left is never garbage; a collection that walked through it took a quarter of a second.
        gc.collect()
        gc.freeze()
        if self._device.kind == "cuda":
            overdue.watch()
        try:
            self._server.send(Ready(self._info))
            while True:
                message = self._server.recv()
                if isinstance(message, Evaluate):
                    self._server.send(self.evaluate(message))
        except (PeerClosed, ServerGone):
            return
        finally:
            self._zygote.close()
            if self._kit is not None:
                self._kit.close()
            remove_tree(self._base)

    def evaluate(self, request: Evaluate) -> Verdict:
        """The verdict on one submission. Raises ServerGone only."""
        progress = Progress(end=time.monotonic() + request.budget_s)
        overdue.allow()
        self._lease.begin(request.eval_id, progress.end)
        # A collection inside the clock would be billed to the submission.
        gc.disable()
        verdict = self._attempt(request, progress, whole_gpu=self._host.judges == 1)
        if verdict is None:
            # Out of memory while the GPU was shared. It counts only where it happens alone.
            progress = Progress(end=progress.end, phase_seconds=progress.phase_seconds)
            self._clean()
            verdict = self._attempt(request, progress, whole_gpu=True)
        assert verdict is not None
        verdict.stage = progress.stage
        verdict.compiled = progress.compiled
        verdict.correct = progress.correct
        verdict.trials_passed, verdict.trials_total = progress.passed, progress.total
        verdict.max_abs_error = progress.max_abs_error
        verdict.phase_seconds = progress.phase_seconds | self._lease.seconds()
        verdict.judge_unfit = self._zygote.unfit
        self._clean()
        gc.enable()
        overdue.stop()
        return verdict

    def _attempt(self, request: Evaluate, progress: Progress, whole_gpu: bool) -> Verdict | None:
        """The verdict but for what `progress` knows; None when memory was short and the GPU was shared."""
        verdict = Verdict(request.eval_id, "compile", "infrastructure")
        try:
            score = self._score(request, progress, whole_gpu)
            _fill_score(verdict, score)
        except SubmissionFailed as failure:
            if failure.outcome == "out_of_memory" and not whole_gpu:
                return None
            missing = missed(failure.outcome, failure.message, self._device.kind, request.language)
            if failure.outcome == "out_of_memory" and self._is_crowded():
                verdict.infra_code, verdict.infra_detail = "judge_out_of_memory", _CROWDED
            elif failure.outcome in _NEEDS_DISK and self._free_bytes() < MIN_FREE_BYTES:
                verdict.infra_code, verdict.infra_detail = "disk", f"the disk is full: {failure.message[:1000]}"
            elif missing:
                verdict.infra_code, verdict.infra_detail = "compiler_missing", f"not found: {', '.join(missing)}"
            else:
                verdict.outcome, verdict.signal = failure.outcome, failure.signal
                verdict.feedback = self._feedback(failure, progress)
            if failure.outcome == "compile_error":
                progress.stage, progress.compiled = "compile", False
        except (TaskUnscorable, TaskError) as error:
            short = any(is_device_out_of_memory(cause) for cause in causes(error))
            if short and not whole_gpu:
                return None
            code = None if short and not self._is_crowded() else shortage(error)
            if code is None and self._free_bytes() < MIN_FREE_BYTES:
                code = "disk"
            if code is not None:
                verdict.infra_code, verdict.infra_detail = code, traceback.format_exc()[-4000:]
            else:
                verdict.outcome = "unscorable_task"
                verdict.feedback = self._scrub(bound(f"This task cannot be scored here: {error}", MAX_FEEDBACK_CHARS))
        except Cancelled:
            verdict.infra_code = "cancelled"
        except InfrastructureFault as fault:
            verdict.infra_code, verdict.infra_detail = fault.code, fault.detail
        except ServerGone:
            raise
        except Exception as error:
            if is_device_out_of_memory(error) and not whole_gpu:
                return None
            verdict.infra_code, verdict.infra_detail = _fault_code(error), traceback.format_exc()[-4000:]
        return verdict

    def _score(self, request: Evaluate, progress: Progress, whole_gpu: bool) -> Score:
        if (free := self._free_bytes()) < MIN_FREE_BYTES:
            raise InfrastructureFault("disk", f"{free >> 20} MiB are free for temporary files")
        key = task_key(request)
        everything = self._device.memory_bytes()
        known = self._baselines.get(key, request.timed_runs)
        need = everything if whole_gpu else known.memory_bytes if known else everything // _FIRST_SHARE
        self._lease.share(need)
        with progress.phase("prepare"):
            task = self._task(request, key)
        if not whole_gpu and need != task.memory_bytes:
            need = task.memory_bytes
            # While it waits for more it counts as having nothing.
            self._device.empty_cache()
            self._lease.share(need)
        with progress.phase("baseline"):
            baseline = self._baseline(request, task, key, progress)
        if known is None:
            self._lease.share(need)  # to time the reference, it had the GPU alone
        score = evaluate_submission(request, task, baseline, self._host, progress)
        if score.suspect:
            self._lease.share(need)  # it had the GPU alone
            with progress.phase("ghost"):
                check_ghost(request, task, self._host, progress)
        return score

    def _task(self, request: Evaluate, key: str) -> TaskContext:
        if key in self._tasks:
            self._tasks.move_to_end(key)
            return self._tasks[key]
        try:
            task = TaskContext(request, self._device, self._lease.listen)
        except (TaskError, torch.AcceleratorError, Cancelled, ServerGone, InfrastructureFault):
            raise
        except Exception as error:
            if is_device_out_of_memory(error):
                raise TaskUnscorable(_DOES_NOT_FIT) from error
            raise TaskUnscorable(f"the reference cannot be run: {type(error).__name__}: {error}") from error
        self._tasks[key] = task
        if len(self._tasks) > MAX_CACHED_TASKS:
            self._tasks.popitem(last=False)
        return task

    def _baseline(self, request: Evaluate, task: TaskContext, key: str, progress: Progress) -> Baseline:
        if (record := self._baselines.get(key, request.timed_runs)) is None:
            try:
                measured = measure_baseline(request, task, self._host, progress.end)
            except Exception as error:
                if is_device_out_of_memory(error):
                    raise TaskUnscorable(_DOES_NOT_FIT) from error
                raise
            time = measured.timing
            need = task.memory_bytes
            record = Record(time.time_ms, time.spread, time.runs, measured.overhead_ms, need, measured.throttled)
            record = self._baselines.add(key, request.timed_runs, record)
        time = Timing(record.time_ms, record.spread, record.runs, "event", record.time_ms, record.time_ms)
        return Baseline(time, record.overhead_ms, record.throttled)

    def _feedback(self, failure: SubmissionFailed, progress: Progress) -> str:
        # Bounded before anything is replaced in it: a candidate may send megabytes.
        text = bound(failure.message, MAX_FEEDBACK_CHARS)
        if progress.printed and failure.outcome in _SHOW_OUTPUT:
            text += f"\nIt printed:\n{progress.printed}"
        return self._scrub(text)

    def _scrub(self, text: str) -> str:
        paths = {self._base: "/tmp", sys.prefix: "<python>", sys.base_prefix: "<python>"}
        return scrub_paths(text, paths | (self._kit.readable_names() if self._kit is not None else {}))

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._base).free

    def _is_crowded(self) -> bool:
        """Whether the device's memory is held by what is none of this server's, now that the submission is gone."""
        room = capacity_bytes(self._device.memory_bytes(), self._host.judges)
        return self._device.free_bytes() < room

    def _clean(self) -> None:
        gc.collect()
        self._device.empty_cache()


_NEEDS_DISK = {"compile_error", "import_error", "construction_error", "runtime_error"}
_SHOW_OUTPUT = {"crashed", "exited", "compile_error", "import_error", "runtime_error", "construction_error"}


def _fill_score(verdict: Verdict, score: Score) -> None:
    verdict.outcome = "scored"
    verdict.t_ref_ms = score.reference.time_ms
    verdict.t_ref_spread = round(score.reference.spread, 5)
    verdict.t_new_ms = score.submission.time_ms
    verdict.t_new_spread = round(score.submission.spread, 5)
    verdict.t_new_interval_ms = score.submission.interval_ms
    if score.kernel_time_fraction is not None:
        verdict.kernel_time_fraction = round(score.kernel_time_fraction, 4)
    verdict.sm_clock_mhz, verdict.throttled = score.sm_clock_mhz, score.throttled
    verdict.timed_runs = score.submission.runs
    verdict.timing_method = score.submission.method
    verdict.t_event_ms, verdict.t_wall_ms = score.submission.event_ms, score.submission.wall_ms
    verdict.t_tolerance_ms = score.submission.tolerance_ms
    verdict.facts = score.facts


def _start_kit(cache: Path, capability: str) -> Kit | None:
    try:
        return Kit(cache, capability)
    except OSError as error:
        print(f"judge: CUDA and C++ sources will compile slowly here: {error}", file=sys.stderr)
        return None


def _prepare_triton(base: str, device: Device) -> str | None:
    """Have Triton compile its driver utilities once, into a cache that every candidate starts from a copy of, and the
    judge's own kernels into another one."""
    seed, own = os.path.join(base, "triton-seed"), os.path.join(base, "triton-judge")
    os.mkdir(own, 0o700)
    os.environ["TRITON_CACHE_DIR"] = seed
    try:
        import triton

        from server.worker import compare_kernel

        _ = triton.runtime.driver.active.utils  # type: ignore[attr-defined]
        os.environ["TRITON_CACHE_DIR"] = own
        works = compare_kernel.warm_up(device.torch_device)
    except Exception:
        return None  # candidates compile them themselves, which costs each a second
    if not works:
        print("judge: comparing without the one-pass kernels, which is slow on large outputs", file=sys.stderr)
    return seed if os.path.isdir(seed) else None


def _fault_code(error: Exception) -> str:
    return shortage(error) or ("disk" if isinstance(error, OSError) else "judge_error")


def main() -> None:
    fd, kind, base, cache, judges = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5])
    connection = Connection(socket.socket(fileno=fd), JudgeRequest, limit=64 << 20)
    sandbox.make_undumpable()
    torch.set_grad_enabled(False)
    try:
        judge = Judge(connection, kind, base, cache, judges)
    except (RuntimeError, AssertionError, InfrastructureFault) as error:  # the second where torch has no CUDA
        connection.send(StartFailed(f"{type(error).__name__}: {error}"[:1000]))
        return
    judge.run()


if __name__ == "__main__":
    main()
