"""Whether a task can tell an honest kernel from an output that did no work, and what its trials need for it.

Runs on the device, on references only. A task is admitted when every trivial output (zeros, a constant, a copy of an
input, one row for all, the output for other inputs or other weights) fails in its trials whatever the seeds, while the
reference's own rounding in fp32, TF32 and against fp64 stays far inside the tolerance. Where the task's own inputs do
not suffice at the usual tolerance, a tighter one between the two errors is taken, and then other inputs.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from server.worker import tree
from server.worker.compare import compare
from server.worker.inputs import GENERAL, InputFamily, extra_trials
from server.worker.protocol import Admission, TrialPlan
from server.worker.task_context import Draw, Reference, TaskContext
from server.worker.weights import state_tensors

WEIGHT_DRAWS = 3
INPUT_DRAWS = 5
# What an honest kernel may be off by, in units of the reference's own rounding error, and as a part of the largest
# value, for kernels that add in another order; and how much larger the least trivial error must be than that.
SAFETY = 8.0
FLOOR = 2e-6
SEPARATION = 8.0
# A family on which fp32 is off by more than this part of the largest value says nothing.
MAX_ROUNDING = 1e-2
_SAMPLE = 1 << 20

Key = tuple[int, str]
"""An output's number and the name of a trivial output."""


@dataclass
class Findings:
    """What the draws of one input family showed.

    Attributes:
        passes: the trivial outputs that some draw accepted at the usual tolerance.
        error: the least (over draws) largest error of each trivial output; absent where there is no such output.
        rounding: of each output, the largest error of the reference's own variants.
        largest: of each output, the largest finite magnitude.
        unusable: why these inputs cannot be used; "" when they can.
    """

    passes: set[Key] = field(default_factory=set)
    error: dict[Key, float] = field(default_factory=dict)
    rounding: dict[int, float] = field(default_factory=dict)
    largest: dict[int, float] = field(default_factory=dict)
    unusable: str = ""

    def note(self, key: Key, accepted: bool, error: float) -> None:
        """Record one trivial output of one draw."""
        if accepted:
            self.passes.add(key)
        self.error[key] = min(self.error.get(key, math.inf), error)

    def honest(self, output: int) -> float:
        """What an honest kernel may be off by."""
        return SAFETY * self.rounding.get(output, 0.0) + FLOOR * self.largest.get(output, 0.0)


def admit(task: TaskContext, *, atol: float, rtol: float) -> Admission:
    """Decide about a task; see the module.

    Raises:
        torch.OutOfMemoryError: it needs more memory than the device has.
    """
    own = _survey(task, None, atol, rtol)
    if own.unusable:
        return Admission(False, f"its own inputs: {own.unusable}")
    remaining = set(own.passes)
    plans = [TrialPlan("", _tighten(own, remaining, len(task.outputs)))]
    tried = [known.name for known in extra_trials(task.task_id)]
    candidates = [*extra_trials(task.task_id), *(family for family in GENERAL if family.name not in tried)]
    for family in candidates:
        required = family.name in tried
        if not remaining and not required:
            break
        found = _survey(task, family, atol, rtol)
        if found.unusable:
            continue
        before = set(remaining)
        remaining &= found.passes | (before - found.error.keys())
        tight = _tighten(found, remaining, len(task.outputs))
        if required or remaining != before:
            plans.append(TrialPlan(family.name, tight))
    margins = [own.error[key] / own.honest(key[0]) for key in own.error if own.honest(key[0]) > 0]
    reason = ""
    if remaining:
        names = sorted({name for _, name in remaining})
        reason = f"no inputs were found on which these outputs fail: {', '.join(names)}"
    return Admission(not remaining, reason, plans, min(margins) if margins else None)


def _tighten(found: Findings, remaining: set[Key], outputs: int) -> list[float | None]:
    """Tolerances under which trivial outputs fail too that pass at the usual one; removes them from `remaining`."""
    tight: list[float | None] = [None] * outputs
    for output in range(outputs):
        honest = found.honest(output)
        keys = [key for key in remaining if key[0] == output and found.error.get(key, 0.0) >= SEPARATION * honest]
        keys = [key for key in keys if found.error[key] > 0.0]
        if not keys:
            continue
        least = min(found.error[key] for key in keys)
        # Half of the least error leaves room on that side, too.
        tight[output] = math.sqrt(max(honest, least * 1e-4) * least / 2)
        remaining.difference_update(keys)
    return tight


def _survey(task: TaskContext, family: InputFamily | None, atol: float, rtol: float) -> Findings:
    found = Findings()
    for _ in range(WEIGHT_DRAWS if task.state else 1):
        reference = task.construct()
        other = _other_weights(task, reference)
        previous = _outputs(task, reference, task.draw(family))
        for number in range(INPUT_DRAWS):
            draw = task.draw(family)
            kept = [tensor.clone() if _copyable(tensor, task) else None for tensor in draw.tensors]
            inputs = draw.arguments()
            expected = _outputs(task, reference, draw)
            if problem := _unusable(expected):
                found.unusable = problem
                return found
            for output, value in enumerate(expected):
                found.largest[output] = max(found.largest.get(output, 0.0), _largest(value))
            if number == 0:
                draw = Draw(draw.spec, [k if k is not None else t for k, t in zip(kept, draw.tensors, strict=True)])
                if problem := _note_rounding(task, reference, draw, expected, found):
                    found.unusable = problem
                    return found
            strangers = _outputs(task, other, Draw(draw.spec, draw.tensors)) if other is not None else None
            for output, value in enumerate(expected):
                for name, trivial in _trivial(output, value, previous, kept, strangers):
                    accepted = _near(trivial, value, atol, rtol) and (
                        compare([trivial], [value], task_id=task.task_id, atol=atol, rtol=rtol, inputs=inputs).ok
                    )
                    found.note((output, name), accepted, _error(trivial, value))
            previous = expected
    return found


def _other_weights(task: TaskContext, reference: Reference) -> Reference | None:
    """Another construction, None where all have the same weights."""
    other = task.construct()
    pairs = zip(state_tensors(reference.model), state_tensors(other.model), strict=True)
    return None if all(torch.equal(a, b) for a, b in pairs) else other


def _copyable(tensor: torch.Tensor, task: TaskContext) -> bool:
    return any(tensor.numel() == math.prod(entry.shape) for entry in task.outputs)


def _outputs(task: TaskContext, reference: Reference, draw: Draw) -> list[torch.Tensor]:
    return task.expected(reference, draw, task.forward_seed())[1]


def _unusable(outputs: list[torch.Tensor]) -> str:
    for value in outputs:
        if value.is_floating_point() and not all(bool(piece.isfinite().all()) for _, piece in tree.chunks(value)):
            return "the reference's output is not finite"
    return ""


def _trivial(
    output: int,
    value: torch.Tensor,
    previous: list[torch.Tensor],
    inputs: list[torch.Tensor | None],
    strangers: list[torch.Tensor] | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The outputs that did no work, of the expected one's shape and dtype."""
    yield "zeros", torch.zeros_like(value)
    yield "the output for other inputs", previous[output]
    if strangers is not None:
        yield "the output for other weights", strangers[output]
    if value.is_floating_point():
        mean = sum(float(piece.double().sum()) for _, piece in tree.chunks(previous[output])) / max(1, value.numel())
        yield "a constant", torch.full_like(value, mean)
    if value.dim() > 1 and value.shape[0] > 1:
        yield "one row for all", value[:1].expand_as(value).contiguous()
    for number, tensor in enumerate(inputs):
        if tensor is not None and tensor.numel() == value.numel():
            yield f"a copy of input {number}", tensor.reshape(value.shape).to(value.dtype)


def _near(trivial: torch.Tensor, value: torch.Tensor, atol: float, rtol: float) -> bool:
    """Whether a sample of the elements is within the tolerance: most trivial outputs need no closer look."""
    step = max(1, value.numel() // _SAMPLE)
    a, b = trivial.reshape(-1)[::step].double(), value.reshape(-1)[::step].double()
    return bool(((a - b).abs() <= atol + rtol * b.abs()).all())


def _error(trivial: torch.Tensor, value: torch.Tensor) -> float:
    largest = 0.0
    for (_, a), (_, b) in zip(tree.chunks(trivial), tree.chunks(value), strict=True):
        largest = max(largest, float((a.float() - b.float()).abs_().max()))
    return largest


def _largest(value: torch.Tensor) -> float:
    return max((float(piece.float().abs().max()) for _, piece in tree.chunks(value) if piece.numel()), default=0.0)


def _note_rounding(
    task: TaskContext, reference: Reference, draw: Draw, expected: list[torch.Tensor], found: Findings
) -> str:
    """Record how far the reference's own variants lie apart; why the inputs are unusable, "" when they are not."""
    if task.draws_in_forward:
        return ""

    def again() -> list[torch.Tensor]:
        return _outputs(task, reference, Draw(draw.spec, [tensor.clone() for tensor in draw.tensors]))

    variants = [again()]
    for allowed in (False, True):
        with _tf32(allowed):
            variants.append(again())
    exact = _exact(task, reference, draw)
    for output, value in enumerate(expected):
        if not value.is_floating_point():
            continue
        base = exact[output] if exact is not None else variants[1][output]
        errors = [_distance(variant[output], base) for variant in (expected, *variants)]
        found.rounding[output] = max(found.rounding.get(output, 0.0), *errors)
        if not all(math.isfinite(error) for error in errors):
            return "the reference is not finite in another precision"
        if max(errors) > MAX_ROUNDING * max(found.largest[output], 1e-30):
            return "the reference in fp32 does not agree with itself in fp64"
    return ""


def _distance(value: torch.Tensor, base: torch.Tensor) -> float:
    largest = 0.0
    for (_, a), (_, b) in zip(tree.chunks(value), tree.chunks(base), strict=True):
        largest = max(largest, float((a.double() - b.double()).abs_().max()))
    return largest


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _exact(task: TaskContext, reference: Reference, draw: Draw) -> list[torch.Tensor] | None:
    """The reference in float64; None where it cannot be run in it (a dtype is written into its code, or memory).

    A copy: what a model keeps beside its parameters and buffers could not be brought back.
    """
    torch.set_default_dtype(torch.float64)
    try:
        model = copy.deepcopy(reference.model).double()
        wide = [t.double() if t.is_floating_point() else t.clone() for t in draw.tensors]
        with torch.no_grad():
            outputs = tree.flatten(model(*tree.unflatten(draw.spec, wide)))[1]
        return outputs if all(o.dtype != torch.float32 for o in outputs) else None
    except torch.AcceleratorError:
        raise  # the device is lost, and nothing that is measured on it afterwards is true
    except (RuntimeError, TypeError, ValueError):
        return None
    finally:
        torch.set_default_dtype(torch.float32)


def describe(task_id: str, source_hash: str, result: Admission) -> dict[str, object]:
    """One line of the table."""
    return {
        "task_id": task_id,
        "source_sha256": source_hash,
        "admitted": result.admitted,
        "reason": result.reason,
        "margin": result.margin,
        "trials": [{"inputs": plan.family, "atol": plan.atol} for plan in result.plans],
    }
