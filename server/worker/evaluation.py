"""One submission from source to verdict: compile, correctness trials, timed calls. Runs in the judge.

The candidate is asked for one call at a time. The judge writes the inputs, poisons the outputs, copies the answer to
memory of its own and only then compares, so a verdict depends on nothing that the candidate can reach.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from server.worker import layout, timing, tree
from server.worker.compare import Comparison, ReferenceUnusable, compare, compare_scalars
from server.worker.device import Device
from server.worker.inputs import InputFamily
from server.worker.process import CandidateProcess, InfrastructureFault, SubmissionFailed, Zygote
from server.worker.protocol import (
    Connection,
    Construct,
    Constructed,
    Evaluate,
    Load,
    Loaded,
    LoadWeights,
    OutputMeta,
    Ran,
    Run,
    SlotLayout,
    Slots,
    SlotsMapped,
    Spawn,
    TaskFacts,
    WeightsLoaded,
)
from server.worker.slots import SharedSlots
from server.worker.task_context import Draw, Reference, TaskContext, fresh_seed
from server.worker.timing import AGREEMENT, Sample, Timing
from server.worker.trash import Trash
from server.worker.weights import state_tensors

# The first call of a forward compiles Triton kernels and may autotune.
FIRST_CALL_EXTRA_S = 30.0
# Timed calls stop early once they have taken this long together.
TIMING_BUDGET_S = {"cuda": 6.0, "cpu": 2.0}
MIN_TIMED_RUNS = 3
# No call may take as long; also keeps sums of claims finite.
MAX_ELAPSED_MS = 1e9
# The cpu evaluator's tasks are small, and filling memory takes it long.
MAX_MEMORY_BYTES = {"cuda": 64 << 30, "cpu": 4 << 30}


@dataclass(frozen=True)
class Host:
    """Where evaluations run: the device, the fork server, the server's connection (to hear a cancellation), a
    directory for the candidates' own, and a Triton cache with its driver utilities to start each of them from."""

    device: Device
    zygote: Zygote
    server: Connection | None
    base: str
    triton_seed: str | None
    trash: Trash


@dataclass
class Baseline:
    """The reference's own time, and the judge's overhead measured around it."""

    timing: Timing
    overhead_ms: float


@dataclass
class Progress:
    """How far a submission has come; what the verdict says when it fails."""

    end: float = math.inf  # by time.monotonic(): when the evaluation must be over
    stage: str = "compile"
    compiled: bool = False
    passed: int = 0
    total: int = 0
    max_abs_error: float | None = None
    correct: bool = False
    timing: Timing | None = None
    printed: str = ""
    phase_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.phase_seconds[name] = round(self.phase_seconds.get(name, 0.0) + spent, 4)


class Evaluation:
    """One run of a source, the submission's or the baseline's, in a candidate process."""

    def __init__(self, request: Evaluate, task: TaskContext, device: Device, progress: Progress) -> None:
        self._request = request
        self._task = task
        self._device = device
        self.progress = progress
        self._slots: SharedSlots
        self._candidate: CandidateProcess
        self._opened = False
        self._calls = 0

    def open(self, stack: ExitStack, host: Host, source: str, fair_share_s: float = math.inf) -> None:
        """Fork a candidate with `source` in a fresh working directory; `stack` ends and removes both.

        `fair_share_s` is as CandidateProcess takes it.
        """
        uid = host.zygote.uid
        workdir = tempfile.mkdtemp(prefix="eval-", dir=host.base)
        stack.callback(host.trash.remove, workdir)
        if host.triton_seed is not None:
            shutil.copytree(host.triton_seed, os.path.join(workdir, "triton"))
        path = os.path.join(workdir, "submission.py")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(source)
        if uid is not None:
            for parent, _, files in os.walk(workdir):
                for entry in (parent, *(os.path.join(parent, name) for name in files)):
                    os.chown(entry, uid, uid)
        spawn = Spawn(workdir, _memory_limit(self._device.kind))
        candidate = CandidateProcess(
            host.zygote, host.server, spawn, self._request.eval_id, self.progress.end, fair_share_s
        )
        self._candidate = stack.enter_context(candidate)
        self._opened = True

    def load(self, class_name: str, guard: bool) -> None:
        timeout_s = self._request.compile_timeout_s
        self._candidate.send(Load("submission.py", class_name, guard), timeout_s)
        self._candidate.wait(Loaded, timeout_s, "Importing and compiling the submission")

    def share(self, slots: SharedSlots) -> None:
        self._slots = slots
        message = Slots(self._task.inputs, self._task.outputs, self._task.weights)
        self._candidate.send(message, 30.0, slots.fds)
        self._candidate.wait(SlotsMapped, 60.0, "Mapping the shared memory")

    def printed(self) -> str:
        return self._candidate.printed() if self._opened else ""

    def new_weights(self, perturbed: bool) -> Reference:
        """Construct both models under one fresh seed; perturb both alike when asked and when the names match."""
        reference = self._task.construct()
        timeout_s = self._request.run_timeout_s + FIRST_CALL_EXTRA_S
        request = Construct(reference.construction_seed, self._task.init_spec, self._task.eval_mode)
        answer = self._candidate.call(request, Constructed, timeout_s, "Constructing the model")
        mine = [(entry.name, list(entry.shape), entry.dtype) for entry in self._task.state]
        theirs = None if answer.state is None else [(name, shape, dtype) for name, shape, dtype in answer.state]
        if perturbed and mine and theirs is not None and sorted(mine) == sorted(theirs):
            self._task.perturb(reference)
            for slot, value in zip(self._slots.weights, state_tensors(reference.model), strict=True):
                slot.copy_(value)
            self._device.synchronize()
            names = [entry.name for entry in self._task.state]
            self._candidate.call(LoadWeights(names), WeightsLoaded, timeout_s, "Loading the weights")
        return reference

    def call(self, draw: Draw, forward_seed: int | None) -> tuple[Ran, float]:
        """One call of the candidate on `draw`, and the judge's window around it in ms.

        The inputs appear in the shared slots inside the window, as late as a cold L2 cache allows; the answer is copied
        inside it too.
        """
        first = self._calls == 0
        timeout_s = self._request.run_timeout_s
        if first:
            timeout_s += min(FIRST_CALL_EXTRA_S, self._request.compile_timeout_s)
        self._calls += 1
        slots = self._slots
        request = Run(fresh_seed(), self._calls, draw.spec, forward_seed)
        slots.poison()
        self._device.synchronize()
        started = time.perf_counter()
        if self._device.gated:
            # Its launches queue behind the gate while the device is busy with what follows.
            self._candidate.send(request, timeout_s)
            self._device.lead()
        for slot, value in zip(slots.inputs, draw.tensors, strict=True):
            slot.copy_(value)
        self._device.flush_l2()
        self._device.open_gate(slots.gate, request.gate)
        if not self._device.gated:
            self._candidate.send(request, timeout_s)
        answer = self._candidate.wait(Ran, timeout_s, "A call of forward")
        slots.snapshot()
        self._device.synchronize()
        window_ms = (time.perf_counter() - started) * 1e3
        if answer.call != request.call:
            raise SubmissionFailed("protocol_error", "The submission's process answered a call that was not made.")
        if not 0 <= answer.elapsed_ms <= MAX_ELAPSED_MS:
            raise SubmissionFailed("protocol_error", "The submission's process reported a time that is not one.")
        return answer, window_ms

    def verify(self, reference: Reference, draw: Draw, forward_seed: int | None, answer: Ran) -> None:
        """Compare the judge's copy of the answer with the reference's output.

        Raises:
            SubmissionFailed: it is wrong.
            TaskUnscorable: the reference itself gives NaN.
        """
        spec, expected = self._task.expected(reference, draw, forward_seed)
        try:
            result = self._judge(answer, spec, expected, draw)
        except ReferenceUnusable as error:
            raise TaskUnscorable(str(error)) from error
        if not result.ok:
            paths = tree.tensor_paths(spec)
            raise SubmissionFailed(result.outcome or "wrong_values", result.sentence(paths))
        if result.max_abs_error is not None:
            self.progress.max_abs_error = max(self.progress.max_abs_error or 0.0, result.max_abs_error)

    def _judge(self, answer: Ran, spec: list[Any], expected: list[torch.Tensor], draw: Draw) -> Comparison:
        request, task = self._request, self._task
        try:
            tree.validate(answer.spec, len(answer.outputs))
        except tree.TreeError as error:
            raise SubmissionFailed("wrong_structure", str(error)) from error
        difference = tree.same_structure(answer.spec, spec)
        if difference is not None or len(answer.outputs) != len(expected):
            return Comparison(False, "wrong_structure", detail=difference or "another number of tensors")
        scalars = compare_scalars(answer.spec, spec, atol=request.atol, rtol=request.rtol)
        if not scalars.ok:
            raise SubmissionFailed(scalars.outcome or "wrong_values", scalars.sentence())
        mine = []
        for index, (meta, entry) in enumerate(zip(answer.outputs, task.outputs, strict=True)):
            mismatch = _shape_mismatch(index, meta, entry)
            if mismatch is not None:
                return mismatch
            answered = layout.answered_layout(meta, entry)
            if answered is None:
                raise SubmissionFailed("protocol_error", f"Output {index} does not lie in the memory it was given.")
            mine.append(self._slots.answer(index, answered))
        inputs = draw.arguments()
        return compare(mine, expected, task_id=task.task_id, atol=request.atol, rtol=request.rtol, inputs=inputs)

    def trials(self) -> Reference:
        """The correctness trials; returns the weights that the timed calls go on with."""
        progress = self.progress
        plan: list[InputFamily | None] = [None] * self._request.trials
        plan += self._task.families
        progress.total = len(plan)
        # Weights change once, halfway: the second half has perturbed ones where the names match.
        change_at = (self._request.trials + 1) // 2 if self._task.state else len(plan)
        reference = self.new_weights(perturbed=False)
        progress.compiled = True
        progress.stage = "correctness"
        for number, family in enumerate(plan):
            if number == change_at:
                del reference
                reference = self.new_weights(perturbed=True)
            draw, forward_seed = self._task.draw(family), self._task.forward_seed()
            answer, _ = self.call(draw, forward_seed)
            where = f" (trial {number + 1} of {len(plan)}, {family.description})" if family else ""
            try:
                self.verify(reference, draw, forward_seed, answer)
            except SubmissionFailed as failure:
                raise SubmissionFailed(failure.outcome, failure.message + where) from None
            progress.passed += 1
        return reference

    def timed_calls(self, reference: Reference, verify: bool) -> list[Sample]:
        """Timed calls on fresh inputs of the task's own generator, each verified when asked."""
        samples: list[Sample] = []
        end = time.monotonic() + TIMING_BUDGET_S[self._device.kind]
        while len(samples) < self._request.timed_runs:
            if len(samples) >= MIN_TIMED_RUNS and time.monotonic() > end:
                break
            draw, forward_seed = self._task.draw(), self._task.forward_seed()
            answer, window_ms = self.call(draw, forward_seed)
            if verify:
                self.verify(reference, draw, forward_seed, answer)
            samples.append(Sample(answer.elapsed_ms, window_ms))
        return samples


class TaskUnscorable(Exception):
    """The task cannot be scored here; the message is the reason, for the client."""


@dataclass
class Score:
    """What a finished evaluation measured."""

    reference: Timing
    submission: Timing
    facts: TaskFacts


def measure_baseline(request: Evaluate, task: TaskContext, host: Host, end: float) -> Baseline:
    """Time the reference in the candidate's place, with nothing else on the device.

    Raises:
        TaskUnscorable: the reference itself fails there.
        InfrastructureFault: its process was lost.
    """
    with ExitStack() as stack:
        run = Evaluation(request, task, host.device, Progress(end=end))
        run.open(stack, host, request.task_source)
        slots = SharedSlots(task, host.device)
        stack.callback(slots.close)
        try:
            run.load("Model", False)
            run.share(slots)
            reference = run.new_weights(perturbed=False)
            run.call(task.draw(), task.forward_seed())
            run.call(task.draw(), task.forward_seed())
            samples = run.timed_calls(reference, verify=False)
        except SubmissionFailed as failure:
            if failure.outcome in ("crashed", "exited", "timeout", "protocol_error"):
                # Our own process died or hung; the reference is trusted code.
                raise InfrastructureFault("worker_lost", f"the baseline: {failure.message}") from failure
            raise TaskUnscorable(f"the reference failed when it was timed: {failure.message}") from failure
        measured, overhead_ms = timing.baseline(samples)
        return Baseline(measured, overhead_ms)


def evaluate_submission(
    request: Evaluate, task: TaskContext, baseline: Baseline, host: Host, progress: Progress
) -> Score:
    """Run the whole evaluation.

    Raises:
        SubmissionFailed, TaskUnscorable, InfrastructureFault, Cancelled, ServerGone: as their names say; `progress`
            tells how far it came.
    """
    with ExitStack() as stack:
        run = Evaluation(request, task, host.device, progress)
        try:
            with progress.phase("share"):
                # Before the submission runs: memory that is short afterwards is its own doing.
                slots = SharedSlots(task, host.device)
                stack.callback(slots.close)
            with progress.phase("spawn"):
                run.open(stack, host, request.code, request.run_timeout_s)
            with progress.phase("compile"):
                run.load("ModelNew", True)
            with progress.phase("share"):
                run.share(slots)
            with progress.phase("correctness"):
                reference = run.trials()
            progress.correct = True
            progress.stage = "timing"
            with progress.phase("timing"):
                samples = run.timed_calls(reference, verify=True)
            measured = timing.submission(samples, baseline.overhead_ms, AGREEMENT[host.device.kind])
            progress.stage = "scored"
            return Score(baseline.timing, measured, task.facts)
        finally:
            progress.printed = run.printed()


def _shape_mismatch(index: int, meta: OutputMeta, entry: SlotLayout) -> Comparison | None:
    if meta.shape != entry.shape:
        detail = f"the shape is {meta.shape[:16]}, and the reference's is {entry.shape}."
        return Comparison(False, "wrong_shape", output=index, detail=detail)
    if meta.dtype != entry.dtype:
        detail = f"the dtype is {meta.dtype[:32]}, and the reference's is {entry.dtype}."
        return Comparison(False, "wrong_dtype", output=index, detail=detail)
    return None


def _memory_limit(kind: str) -> int:
    """Private memory of one candidate's process in bytes: at most half of the host's."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MAX_MEMORY_BYTES[kind], host // 2)
