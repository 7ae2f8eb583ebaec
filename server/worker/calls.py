"""One run of a source, the submission's or the baseline's, in a candidate process. Runs in the judge.

The candidate is asked for one call at a time. The judge writes the inputs, poisons the outputs, copies the answer to
memory of its own and only then compares, so a verdict depends on nothing that the candidate can reach.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from server.worker import layout, tree
from server.worker.answers import interpreting
from server.worker.compare import Comparison, ReferenceUnusable, compare, compare_scalars
from server.worker.device import Device
from server.worker.lease import GpuLease
from server.worker.process import CandidateProcess, SubmissionFailed, Zygote
from server.worker.protocol import (
    Construct,
    Constructed,
    Evaluate,
    Load,
    Loaded,
    LoadWeights,
    OutputMeta,
    Queued,
    Ran,
    Run,
    SlotLayout,
    Slots,
    SlotsMapped,
    Spawn,
    WeightsLoaded,
)
from server.worker.slots import SharedSlots
from server.worker.task_context import Draw, Reference, TaskContext, fresh_seed
from server.worker.trash import Trash
from server.worker.weights import state_tensors

# The first call of a forward compiles Triton kernels and may autotune.
FIRST_CALL_EXTRA_S = 30.0
# How long the device is kept busy before the inputs appear, for the launches to queue: what a message takes, and what
# the call before needed and some more. It lies outside the clock, so claiming more gains nothing.
LEAD_MS = 0.2
LEAD_FACTOR = 1.5
MAX_LEAD_MS = 10.0
# For a call without the submission's kernels: what is left of it may wait for them.
GHOST_TIMEOUT_S = 10.0
# The judge's own work after an answer; other processes' kernels may come between.
SETTLE_S = 20.0
# No call may take as long; also keeps sums of claims finite.
MAX_ELAPSED_MS = 1e9
# The cpu evaluator's tasks are small, and filling memory takes it long.
MAX_MEMORY_BYTES = {"cuda": 64 << 30, "cpu": 4 << 30}
MIN_MEMORY_BYTES = 8 << 30


class TaskUnscorable(Exception):
    """The task cannot be scored here; the message is the reason, for the client."""


@dataclass(frozen=True)
class Host:
    """Where evaluations run: the device and its lease, the fork server, a directory for the candidates' own, a Triton
    cache with its driver utilities to start each of them from, and how many judges share this machine."""

    device: Device
    lease: GpuLease
    zygote: Zygote
    base: str
    triton_seed: str | None
    trash: Trash
    judges: int


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
    """One candidate process and what the judge asks of it."""

    def __init__(self, request: Evaluate, task: TaskContext, host: Host, progress: Progress) -> None:
        self._request = request
        self._task = task
        self._host = host
        self._device = host.device
        self.progress = progress
        self._slots: SharedSlots
        self._candidate: CandidateProcess
        self.opened = False
        self.hang_s = math.inf
        """How long the kernels of a first or a timed call may run: until it is over nobody else can time anything."""
        self._calls = 0
        self._trusted = False
        self._lead_ms = LEAD_MS

    def open(self, stack: ExitStack, source: str, fair_share_s: float = math.inf, trusted: bool = False) -> None:
        """Fork a candidate with `source` in a fresh working directory; `stack` ends and removes both.

        `fair_share_s` is as CandidateProcess takes it. A `trusted` one may use all of PyTorch: the reference.
        """
        self._trusted = trusted
        host, uid = self._host, self._host.zygote.uid
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
        links = self._request.language == "cuda"
        spawn = Spawn(workdir, _memory_limit(self._device.kind, host.judges), trusted, links)
        candidate = CandidateProcess(host.zygote, host.lease, spawn, self.progress.end, fair_share_s)
        self._candidate = stack.enter_context(candidate)
        self.opened = True

    def load(self, class_name: str, ghost: bool = False) -> None:
        timeout_s = self._request.compile_timeout_s
        self._candidate.compiles = True
        request = Load("submission.py", class_name, not self._trusted, ghost)
        self._candidate.call(request, Loaded, timeout_s, "Importing and compiling the submission")
        self._candidate.compiles = False

    def share(self, slots: SharedSlots) -> None:
        self._slots = slots
        message = Slots(self._task.inputs, self._task.outputs, self._task.weights)
        self._candidate.send(message, 30.0, slots.fds)
        self._candidate.wait(SlotsMapped, 60.0, "Mapping the shared memory")

    def printed(self) -> str:
        return self._candidate.printed() if self.opened else ""

    def new_weights(self, perturbed: bool) -> Reference:
        """Construct both models under one fresh seed; perturb both alike when asked and when the names match."""
        self._host.lease.listen()
        reference = self._task.construct()
        timeout_s = self._request.run_timeout_s + FIRST_CALL_EXTRA_S
        request = Construct(reference.construction_seed, self._task.init_spec, self._task.eval_mode)
        answer = self._candidate.call(request, Constructed, timeout_s, "Constructing the model")
        mine = [(entry.name, list(entry.shape), entry.dtype) for entry in self._task.state]
        theirs = answer.state
        if perturbed and mine and theirs and len(mine) == len(theirs) and sorted(mine) == sorted(theirs):
            self._task.perturb(reference)
            for slot, value in zip(self._slots.weights, state_tensors(reference.model), strict=True):
                slot.copy_(value)
            self._device.synchronize()
            names = [entry.name for entry in self._task.state]
            self._candidate.call(LoadWeights(names), WeightsLoaded, timeout_s, "Loading the weights")
        return reference

    def call(
        self, draw: Draw, forward_seed: int | None, timed: bool = False, retune: bool = False, ghost: bool = False
    ) -> tuple[Ran, float]:
        """One call of the candidate on `draw`, and the judge's window around it in ms.

        The inputs appear in the shared slots inside the window, as late as a cold L2 cache allows; the answer is copied
        inside it too. A `timed` one has the device to itself: the judge's stream waits there for the candidate's, and
        the window is measured on the device. `retune` has the candidate forget what @triton.autotune found, and `ghost`
        silence its Triton kernels for good.
        """
        self._host.lease.listen()
        timeout_s = self._request.run_timeout_s
        compiles = self._calls == 0 or retune
        if compiles:
            timeout_s += min(FIRST_CALL_EXTRA_S, self._request.compile_timeout_s)
        if ghost:
            timeout_s = min(timeout_s, GHOST_TIMEOUT_S)
        self._calls += 1
        device, slots = self._device, self._slots
        request = Run(fresh_seed(), self._calls, draw.spec, forward_seed, retune, compiles, ghost)
        slots.poison()
        device.synchronize()
        if device.gated:
            # Its launches queue behind the gate while the device is busy with what follows.
            self._candidate.send(request, timeout_s)
            device.lead(self._lead_ms)
        began = device.mark()
        for slot, value in zip(slots.inputs, draw.tensors, strict=True):
            slot.copy_(value)
        device.flush_l2()
        device.open_gate(slots.gate, request.gate)
        if not device.gated:
            self._candidate.send(request, timeout_s)
        waits = timed and device.gated
        try:
            if waits:
                device.wait_signal(slots.gate, request.gate)
                slots.snapshot()
                ended = device.mark()
                answer = self._candidate.wait(Ran, min(timeout_s, self.hang_s), "A call of forward")
            else:
                if compiles:
                    self._candidate.wait(Queued, timeout_s, "A call of forward")
                    timeout_s = min(self._request.run_timeout_s, self.hang_s)
                answer = self._candidate.wait(Ran, timeout_s, "A call of forward, once compiled,")
                slots.snapshot()
                ended = device.mark()
            window_ms = device.between(began, ended, SETTLE_S)
        except BaseException:
            device.release(slots.gate, request.gate)
            raise
        if window_ms is None:
            device.release(slots.gate, request.gate)
            raise SubmissionFailed("protocol_error", "The submission's process answered before its work had ended.")
        if answer.call != request.call:
            raise SubmissionFailed("protocol_error", "The submission's process answered a call that was not made.")
        if not (0 <= answer.elapsed_ms <= MAX_ELAPSED_MS and 0 <= answer.queued_ms <= MAX_ELAPSED_MS):
            raise SubmissionFailed("protocol_error", "The submission's process reported a time that is not one.")
        self._lead_ms = min(LEAD_MS + LEAD_FACTOR * answer.queued_ms, MAX_LEAD_MS)
        return answer, window_ms

    def verify(
        self,
        reference: Reference,
        draw: Draw,
        forward_seed: int | None,
        answer: Ran,
        tight: Sequence[float | None] = (),
    ) -> None:
        """Compare the judge's copy of the answer with the reference's output; `tight` is as compare.compare takes it.

        Raises:
            SubmissionFailed: it is wrong.
            TaskUnscorable: the reference itself gives NaN.
        """
        self._host.lease.listen()
        spec, expected = self._task.expected(reference, draw, forward_seed)
        try:
            result = self._judge(answer, spec, expected, draw, tight)
        except ReferenceUnusable as error:
            raise TaskUnscorable(str(error)) from error
        if not result.ok:
            paths = tree.tensor_paths(spec)
            raise SubmissionFailed(result.outcome or "wrong_values", result.sentence(paths))
        if result.max_abs_error is not None:
            self.progress.max_abs_error = max(self.progress.max_abs_error or 0.0, result.max_abs_error)

    def _judge(
        self, answer: Ran, spec: list[Any], expected: list[torch.Tensor], draw: Draw, tight: Sequence[float | None]
    ) -> Comparison:
        request, task = self._request, self._task
        mine = self._answered(answer, spec, expected)
        if isinstance(mine, Comparison):
            return mine
        inputs = draw.arguments()
        return compare(
            mine,
            expected,
            task_id=task.task_id,
            atol=request.atol,
            rtol=request.rtol,
            inputs=inputs,
            tight=tight,
        )

    @interpreting()
    def _answered(self, answer: Ran, spec: list[Any], expected: list[torch.Tensor]) -> list[torch.Tensor] | Comparison:
        """The outputs as the judge's own copy holds them, or what is wrong with the answer without a look at them."""
        request, task = self._request, self._task
        try:
            answered_spec = tree.received(answer.spec, len(answer.outputs))
        except tree.TreeError as error:
            raise SubmissionFailed("wrong_structure", str(error)) from error
        difference = tree.same_structure(answered_spec, spec)
        if difference is not None or len(answer.outputs) != len(expected):
            return Comparison(False, "wrong_structure", detail=difference or "another number of tensors")
        scalars = compare_scalars(answered_spec, spec, atol=request.atol, rtol=request.rtol)
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
        return mine


def _shape_mismatch(index: int, meta: OutputMeta, entry: SlotLayout) -> Comparison | None:
    if meta.shape != entry.shape:
        detail = f"the shape is {meta.shape[:16]}, and the reference's is {entry.shape}."
        return Comparison(False, "wrong_shape", output=index, detail=detail)
    if meta.dtype != entry.dtype:
        detail = f"the dtype is {meta.dtype[:32]}, and the reference's is {entry.dtype}."
        return Comparison(False, "wrong_dtype", output=index, detail=detail)
    return None


def _memory_limit(kind: str, judges: int) -> int:
    """Private memory of one candidate's process in bytes: its share of half of the host's, or what nvcc needs."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MAX_MEMORY_BYTES[kind], max(host // 2 // judges, min(MIN_MEMORY_BYTES, host // 2)))
