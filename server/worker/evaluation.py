"""One submission from source to verdict: compile, correctness trials, timed calls; and the baseline. In the judge."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import torch

from server.worker import timing
from server.worker.calls import GHOST_TIMEOUT_S, Evaluation, Host, Progress, TaskUnscorable
from server.worker.faults import is_device_out_of_memory
from server.worker.lease import InfrastructureFault
from server.worker.nvml import Reading
from server.worker.process import SubmissionFailed
from server.worker.protocol import Evaluate, Ran, TaskFacts
from server.worker.slots import SharedSlots
from server.worker.task_context import Draw, Reference, TaskContext, Trial
from server.worker.timing import AGREEMENT, Sample, Timing

# Timed calls stop early once they have taken this long together.
TIMING_BUDGET_S = {"cuda": 6.0, "cpu": 2.0}
MIN_TIMED_RUNS = 3
# How often the reference is timed while something holds the clocks down, before that is taken for the host's way.
BASELINE_TRIES = 3
# What the kernels of a call may take: this long, and so many times the reference's time.
HANG_S = 10.0
HANG_FACTOR = 1000.0
# A submission that was waited for so much of what it had left of its step has used the time up itself.
FAIR_SHARE = 0.5
# Before some timed calls, at random, comes one that is not timed, with inputs that only trials have: there a submission
# is caught that computed properly in its first calls and takes a shortcut later. One of the first three, for certain,
# and then one in so many.
CHECKED_IN = 3
# Without its kernels, to see what remains of a call's time.
GHOST_CALLS = 3


@dataclass
class Baseline:
    """The reference's own time, and the judge's overhead measured around it."""

    timing: Timing
    overhead_ms: float
    throttled: list[str] = field(default_factory=list)
    """What held the clocks down meanwhile."""


@dataclass
class Score:
    """What a finished evaluation measured."""

    reference: Timing
    submission: Timing
    facts: TaskFacts
    suspect: bool
    """Right also when its kernels did not run any more: to be looked at in a new process."""
    kernel_time_fraction: float | None
    """Of its time, what is not spent when its Triton kernels do nothing; None where that was not measured."""
    sm_clock_mhz: int | None
    throttled: list[str]
    """What held the clocks down while it, or the reference, was timed."""


def trials(run: Evaluation, request: Evaluate, task: TaskContext) -> Reference:
    """The correctness trials; returns the weights that the timed calls go on with."""
    progress = run.progress
    plan = [task.own] * request.trials + task.families
    progress.total = len(plan)
    # Weights change once, halfway: the second half has perturbed ones where the names match.
    change_at = (request.trials + 1) // 2 if task.state else len(plan)
    reference = run.new_weights(perturbed=False)
    progress.compiled = True
    progress.stage = "correctness"
    for number, trial in enumerate(plan):
        if number == change_at:
            del reference
            reference = run.new_weights(perturbed=True)
        draw, forward_seed = task.draw(trial.family), task.forward_seed()
        answer, _ = run.call(draw, forward_seed)
        where = f" (trial {number + 1} of {len(plan)}, {trial.family.description})" if trial.family else ""
        try:
            run.verify(reference, draw, forward_seed, answer, trial.tight)
        except SubmissionFailed as failure:
            raise SubmissionFailed(failure.outcome, failure.message + where, failure.signal) from None
        progress.passed += 1
    return reference


def timed_calls(
    run: Evaluation, request: Evaluate, task: TaskContext, device: str, reference: Reference, baseline: Baseline | None
) -> list[Sample]:
    """Calls on fresh inputs of the task's own generator, until timing.settled says that they are enough.

    `baseline` is None for the baseline itself, whose answers are not verified.
    """

    def call(trial: Trial, retune: bool = False) -> Sample:
        draw, forward_seed = task.draw(trial.family), task.forward_seed()
        answer, window_ms = run.call(draw, forward_seed, timed=not retune, retune=retune)
        if baseline is not None:
            run.verify(reference, draw, forward_seed, answer, trial.tight)
        return Sample(answer.elapsed_ms, window_ms)

    # What a submission tuned while others used the GPU too, it tunes again.
    call(task.own, retune=True)
    certain = secrets.randbelow(MIN_TIMED_RUNS)
    samples: list[Sample] = []
    end = time.monotonic() + TIMING_BUDGET_S[device]
    while len(samples) < request.timed_runs:
        if len(samples) >= MIN_TIMED_RUNS and time.monotonic() > end:
            break
        if baseline is None:
            enough = timing.settled([sample.event_ms for sample in samples], None)
        else:
            steady = timing.uninterrupted(samples, baseline.overhead_ms, AGREEMENT[device])
            enough = timing.settled([sample.event_ms for sample in steady], baseline.timing.time_ms)
        if enough:
            break
        for trial in task.families:
            if len(samples) == certain or secrets.randbelow(CHECKED_IN * len(task.families)) == 0:
                call(trial)
        samples.append(call(task.own))
    return samples


def measure_baseline(request: Evaluate, task: TaskContext, host: Host, end: float) -> Baseline:
    """Time the reference in the candidate's place, with nothing else on the device.

    Raises:
        TaskUnscorable: the reference itself fails there.
        torch.OutOfMemoryError: memory is short, which may be for others' use of the device.
        InfrastructureFault: its process was lost.
    """
    with ExitStack() as stack:
        run = Evaluation(request, task, host, Progress(end=end))
        run.open(stack, request.task_source, trusted=True)
        slots = SharedSlots(task, host.device)
        stack.callback(slots.close)
        try:
            run.load("Model")
            run.share(slots)
            reference = run.new_weights(perturbed=False)
            run.call(task.draw(), task.forward_seed())
            run.call(task.draw(), task.forward_seed())
            slowed = 0
            while True:
                host.lease.alone()
                before = host.device.health()
                samples = timed_calls(run, request, task, host.device.kind, reference, None)
                throttled = _throttled(before, host.device.health())
                slowed += bool(throttled)
                # What another's process did meanwhile, and low clocks, would count in every score of this task.
                if host.device.is_quiet() and (not throttled or slowed >= BASELINE_TRIES):
                    break
        except SubmissionFailed as failure:
            if failure.outcome in ("crashed", "exited", "timeout", "protocol_error"):
                # Our own process died or hung; the reference is trusted code.
                raise InfrastructureFault("worker_lost", f"the baseline: {failure.message}") from failure
            if failure.outcome == "out_of_memory":
                raise torch.OutOfMemoryError(failure.message) from failure
            raise TaskUnscorable(f"the reference failed when it was timed: {failure.message}") from failure
        measured, overhead_ms = timing.baseline(samples)
        return Baseline(measured, overhead_ms, throttled)


def evaluate_submission(
    request: Evaluate, task: TaskContext, baseline: Baseline, host: Host, progress: Progress
) -> Score:
    """Run the whole evaluation.

    Raises:
        SubmissionFailed, TaskUnscorable, InfrastructureFault, Cancelled, ServerGone: as their names say; `progress`
            tells how far it came.
    """
    with ExitStack() as stack:
        run = Evaluation(request, task, host, progress)
        run.hang_s = max(HANG_S, HANG_FACTOR * baseline.timing.time_ms * 1e-3)
        try:
            with progress.phase("share"):
                # Before the submission runs: memory that is short afterwards is its own doing.
                slots = SharedSlots(task, host.device)
                stack.callback(slots.close)
            with progress.phase("spawn"):
                left_s = progress.end - time.monotonic()
                run.open(stack, request.code, min(request.run_timeout_s, FAIR_SHARE * left_s))
            with progress.phase("compile"):
                run.load("ModelNew")
            with progress.phase("share"):
                run.share(slots)
            with progress.phase("correctness"):
                reference = trials(run, request, task)
            progress.correct = True
            progress.stage = "timing"
            with progress.phase("timing"):
                host.lease.alone()
                before = host.device.health()
                samples = timed_calls(run, request, task, host.device.kind, reference, baseline)
                after = host.device.health()
            del reference
            measured = timing.submission(samples, baseline.overhead_ms, AGREEMENT[host.device.kind])
            suspect, fraction = False, None
            if request.language == "triton":
                with progress.phase("ghost"):
                    suspect, idle = _is_right_as_ghost(run, task, loaded_so=False)
                if idle:
                    rest = timing.submission(idle, baseline.overhead_ms, AGREEMENT[host.device.kind])
                    fraction = max(0.0, 1.0 - rest.time_ms / measured.time_ms)
            progress.stage = "scored"
            return Score(
                baseline.timing,
                measured,
                task.facts,
                suspect,
                fraction,
                after.sm_clock_mhz if after is not None else None,
                sorted({*baseline.throttled, *_throttled(before, after)}),
            )
        except Exception as error:
            if not is_device_out_of_memory(error) or not run.opened:
                raise
            # The slots were there before it ran, and beside the reference the rest had room too.
            raise SubmissionFailed(
                "out_of_memory", "The submission takes so much of the GPU's memory that its output cannot be checked."
            ) from error
        finally:
            progress.printed = run.printed()


def _throttled(before: Reading | None, after: Reading | None) -> list[str]:
    """What held the clocks down between two readings; nothing where there is none."""
    return after.since(before) if after is not None and before is not None else []


def _is_right_as_ghost(run: Evaluation, task: TaskContext, loaded_so: bool) -> tuple[bool, list[Sample]]:
    """Whether a submission's answers are right on all inputs although none of its Triton kernels runs, and what its
    calls take then. (None: one ends in an error. `loaded_so`: it was loaded without them, and is not timed.)

    Whatever else it does then says nothing, since the kernels are not there.
    """
    error = run.progress.max_abs_error
    samples: list[Sample] = []

    def call(trial: Trial) -> tuple[Draw, int | None, Ran]:
        draw, forward_seed = task.draw(trial.family), task.forward_seed()
        answer, window_ms = run.call(draw, forward_seed, timed=not loaded_so, ghost=not loaded_so)
        samples.append(Sample(answer.elapsed_ms, window_ms))
        return draw, forward_seed, answer

    try:
        reference = run.new_weights(perturbed=False)
        # A new model's first call takes the host longer than the device was kept busy for.
        for _ in range(0 if loaded_so else GHOST_CALLS):
            call(task.own)
        # On some inputs a copy of them, say, is right.
        for trial in (task.own, *task.families):
            draw, forward_seed, answer = call(trial)
            run.verify(reference, draw, forward_seed, answer, trial.tight)
    except SubmissionFailed:
        return False, samples
    finally:
        run.progress.max_abs_error = error  # this one's is no error of the submission's
    return True, samples


def check_ghost(request: Evaluate, task: TaskContext, host: Host, progress: Progress) -> None:
    """Run a submission in a new process without its Triton kernels: what it keeps from earlier calls, a graph of them
    say, is not there.

    Raises:
        SubmissionFailed: it is still right, so something else does the work.
    """
    request = msgspec.structs.replace(request, run_timeout_s=min(GHOST_TIMEOUT_S, request.run_timeout_s))
    with ExitStack() as stack:
        run = Evaluation(request, task, host, Progress(end=progress.end))
        slots = SharedSlots(task, host.device)
        stack.callback(slots.close)
        try:
            run.open(stack, request.code)
            run.load("ModelNew", ghost=True)
            run.share(slots)
        except SubmissionFailed:
            return
        if not _is_right_as_ghost(run, task, loaded_so=True)[0]:
            return
    progress.stage, progress.correct = "correctness", False
    raise SubmissionFailed(
        "format_violation",
        "The output stays right when none of your Triton kernels runs: something else computes it. Do the task's work "
        "in your own kernels.",
    )
