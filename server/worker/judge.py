"""The judge: a long-lived trusted process, one for each device, that scores one submission at a time for the server.

It alone holds references, seeds, expected outputs and the clock. It speaks to the server over a Unix socket (the
messages of protocol.py), forks candidates through its zygote, and ends when the server's socket closes.

    python -m server.worker.judge FD cuda|cpu DIRECTORY

DIRECTORY is empty and becomes the parent of the candidates' own.
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

import torch

from server.text import bound, scrub_paths
from server.worker import sandbox
from server.worker.device import Device, create_device
from server.worker.evaluation import (
    Baseline,
    Host,
    Progress,
    Score,
    TaskUnscorable,
    evaluate_submission,
    measure_baseline,
)
from server.worker.guard import warm_up
from server.worker.process import Cancelled, InfrastructureFault, ServerGone, SubmissionFailed, Zygote
from server.worker.protocol import Cancel, Connection, Evaluate, PeerClosed, Ready, StartFailed, Verdict
from server.worker.task_context import TaskContext, task_key
from server.worker.task_module import TaskError
from server.worker.trash import Trash, remove_tree
from server.worker.vmm import CudaDriverError

MAX_CACHED_TASKS = 64
MAX_FEEDBACK_CHARS = 16_000
_CUDA_OUT_OF_MEMORY = 2


class Judge:
    """Scores submissions on one device. Not to be used after a fault of its own: the server replaces it then."""

    def __init__(self, server: Connection, kind: str, base: str) -> None:
        self._server = server
        self._device: Device = create_device(kind)
        # Readable by nobody else; the candidates' own directories below it are.
        self._base = base
        os.chmod(self._base, 0o711)
        capability = None
        if kind == "cuda":
            major, minor = torch.cuda.get_device_capability()
            capability = f"{major}.{minor}"
        self._zygote = Zygote(kind, capability)
        warm_up()
        self._triton_seed = _build_triton_utilities(self._base) if kind == "cuda" else None
        self._host = Host(self._device, self._zygote, server, base, self._triton_seed, Trash())
        self._tasks: OrderedDict[str, TaskContext] = OrderedDict()
        self._baselines: dict[str, Baseline] = {}

    def run(self) -> None:
        """Serve until the server is gone."""
        try:
            self._server.send(Ready(self._device.info(self._zygote.sandbox)))
            while True:
                message = self._server.recv()
                if isinstance(message, Evaluate):
                    self._server.send(self.evaluate(message))
        except (PeerClosed, ServerGone):
            return
        finally:
            self._zygote.close()
            remove_tree(self._base)

    def evaluate(self, request: Evaluate) -> Verdict:
        """The verdict on one submission. Raises ServerGone only."""
        progress = Progress(end=time.monotonic() + request.budget_s)
        verdict = Verdict(request.eval_id, "compile", "infrastructure")
        # A collection inside the clock would be billed to the submission.
        gc.disable()
        try:
            score = self._score(request, progress)
            _fill_score(verdict, score)
        except SubmissionFailed as failure:
            missing = _missing_tools(self._device.kind, request.language) if failure.outcome == "compile_error" else []
            if missing:
                verdict.infra_code, verdict.infra_detail = "compiler_missing", f"not found: {', '.join(missing)}"
            else:
                verdict.outcome = failure.outcome
                verdict.feedback = self._feedback(failure, progress)
            if failure.outcome == "compile_error":
                progress.stage, progress.compiled = "compile", False
        except (TaskUnscorable, TaskError) as error:
            verdict.outcome, verdict.feedback = "unscorable_task", f"This task cannot be scored here: {error}"
        except Cancelled:
            verdict.infra_code = "cancelled"
        except InfrastructureFault as fault:
            verdict.infra_code, verdict.infra_detail = fault.code, fault.detail
        except ServerGone:
            raise
        except (torch.OutOfMemoryError, MemoryError) as error:
            verdict.infra_code, verdict.infra_detail = "judge_out_of_memory", str(error)[:2000]
        except Exception as error:
            verdict.infra_code, verdict.infra_detail = _fault_code(error), traceback.format_exc()[-4000:]
        verdict.stage = progress.stage
        verdict.compiled = progress.compiled
        verdict.correct = progress.correct
        verdict.trials_passed, verdict.trials_total = progress.passed, progress.total
        verdict.max_abs_error = progress.max_abs_error
        verdict.phase_seconds = progress.phase_seconds
        self._clean()
        return verdict

    def _score(self, request: Evaluate, progress: Progress) -> Score:
        with progress.phase("prepare"):
            task = self._task(request)
        with progress.phase("baseline"):
            baseline = self._baseline(request, task, progress)
        return evaluate_submission(request, task, baseline, self._host, progress)

    def _task(self, request: Evaluate) -> TaskContext:
        key = task_key(request)
        if key in self._tasks:
            self._tasks.move_to_end(key)
            return self._tasks[key]
        try:
            task = TaskContext(request, self._device)
        except TaskError as error:
            raise TaskUnscorable(str(error)) from error
        except torch.OutOfMemoryError as error:
            raise TaskUnscorable("the reference does not fit into this device's memory") from error
        except torch.AcceleratorError:
            raise
        except Exception as error:
            raise TaskUnscorable(f"the reference cannot be run: {type(error).__name__}: {error}") from error
        self._tasks[key] = task
        if len(self._tasks) > MAX_CACHED_TASKS:
            self._tasks.popitem(last=False)
        return task

    def _baseline(self, request: Evaluate, task: TaskContext, progress: Progress) -> Baseline:
        key = f"{task_key(request)} {request.timed_runs}"
        if key not in self._baselines:
            self._baselines[key] = measure_baseline(request, task, self._host, progress.end)
        return self._baselines[key]

    def _feedback(self, failure: SubmissionFailed, progress: Progress) -> str:
        # Bounded before anything is replaced in it: a candidate may send megabytes.
        text = bound(failure.message, MAX_FEEDBACK_CHARS)
        if progress.printed and failure.outcome in _SHOW_OUTPUT:
            text += f"\nIt printed:\n{progress.printed}"
        return scrub_paths(text, {self._base: "/tmp", sys.prefix: "<python>", sys.base_prefix: "<python>"})

    def _clean(self) -> None:
        gc.enable()
        gc.collect()
        self._device.empty_cache()


_SHOW_OUTPUT = {"crashed", "exited", "compile_error", "import_error", "runtime_error", "construction_error"}


def _fill_score(verdict: Verdict, score: Score) -> None:
    verdict.outcome = "scored"
    verdict.t_ref_ms = score.reference.time_ms
    verdict.t_ref_spread = round(score.reference.spread, 5)
    verdict.t_new_ms = score.submission.time_ms
    verdict.t_new_spread = round(score.submission.spread, 5)
    verdict.timed_runs = score.submission.runs
    verdict.timing_method = score.submission.method
    verdict.t_event_ms, verdict.t_wall_ms = score.submission.event_ms, score.submission.wall_ms
    verdict.t_tolerance_ms = score.submission.tolerance_ms
    verdict.facts = score.facts


def _build_triton_utilities(base: str) -> str | None:
    """Have Triton compile its driver utilities once, into a cache that every candidate starts from a copy of."""
    seed = os.path.join(base, "triton-seed")
    os.environ["TRITON_CACHE_DIR"] = seed
    try:
        import triton

        _ = triton.runtime.driver.active.utils  # type: ignore[attr-defined]
    except Exception:
        return None  # candidates compile them themselves, which costs each a second
    return seed if os.path.isdir(seed) else None


def _missing_tools(kind: str, language: str) -> list[str]:
    """What a submission needs to be compiled and this host lacks: then a compile error is not the submission's."""
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    directories = [os.environ.get("PATH", ""), *(os.path.join(home, "bin") for home in homes)]
    path = os.pathsep.join([*directories, os.path.dirname(sys.executable)])
    wanted: list[tuple[str, ...]] = []
    if language == "cuda":
        wanted += [("ninja",), (os.environ.get("CXX") or "g++", "c++", "clang++")]
    if kind == "cuda":
        wanted.append(("nvcc",) if language == "cuda" else (os.environ.get("CC") or "gcc", "cc", "clang"))
    return [names[0] for names in wanted if not any(shutil.which(name, path=path) for name in names)]


def _fault_code(error: Exception) -> str:
    if isinstance(error, CudaDriverError) and error.code == _CUDA_OUT_OF_MEMORY:
        return "judge_out_of_memory"
    if isinstance(error, (torch.AcceleratorError, CudaDriverError)):
        return "gpu_lost"
    if isinstance(error, OSError):
        return "disk"
    return "judge_error"


def main() -> None:
    fd, kind, base = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    connection = Connection(socket.socket(fileno=fd), Evaluate | Cancel, limit=64 << 20)
    sandbox.make_undumpable()
    torch.set_grad_enabled(False)
    try:
        judge = Judge(connection, kind, base)
    except (RuntimeError, InfrastructureFault) as error:
        connection.send(StartFailed(f"{type(error).__name__}: {error}"[:1000]))
        return
    judge.run()


if __name__ == "__main__":
    main()
