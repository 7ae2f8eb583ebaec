"""A task as the judge uses it: the loaded reference, the layout of its inputs and outputs, and its FLOPs and bytes.

Trusted; lives in the judge. Expected outputs are computed here and never leave the judge's own memory.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from server.worker import layout, tree
from server.worker.device import Device
from server.worker.inputs import InputFamily, extra_trials, family_named
from server.worker.protocol import Evaluate, SlotLayout, TaskFacts
from server.worker.task_module import TaskError, TaskModule, load_task, seed_all
from server.worker.weights import Statistics, perturb, restore_statistics, snapshot_statistics, state_schema

_CONTEXTS_BYTES = 3 << 30


def fresh_seed() -> int:
    """63 bits from the operating system: nothing a submission can predict."""
    return secrets.randbits(63)


@dataclass
class Draw:
    """One set of inputs: the spec for tree.unflatten and the tensors, on the device."""

    spec: list[Any]
    tensors: list[torch.Tensor]

    def arguments(self) -> list[Any]:
        return tree.unflatten(self.spec, self.tensors)


@dataclass
class Reference:
    """A constructed Model with the seed it was built under, and its buffers as they were before any call."""

    model: torch.nn.Module
    construction_seed: int
    statistics: Statistics


@dataclass(frozen=True)
class Trial:
    """Inputs of a trial (None: the task's own) and, for each output, an absolute tolerance besides the usual."""

    family: InputFamily | None
    tight: tuple[float | None, ...] = ()


class TaskContext:
    """What stays of a task between evaluations: no tensors, so that thousands of tasks cost no device memory."""

    def __init__(self, request: Evaluate, device: Device, listen: Callable[[], object] = lambda: None) -> None:
        """Runs the reference once; `listen` is called between its parts, and may raise what ends it."""
        self.task_id = request.task_id
        self._device = device
        self._listen = listen
        self.module: TaskModule = load_task(request.task_id, request.task_source)
        self.init_spec, init_tensors = tree.flatten(self.module.init_inputs())
        if init_tensors:
            raise TaskError("the task's get_init_inputs returns tensors, which is not supported")
        self.own, self.families = _plans(request)
        """How the answers on the task's own inputs are compared, and what other inputs trials have."""
        self.draws_in_forward = False
        self._measure()

    def _measure(self) -> None:
        self._listen()
        self._device.reset_peak()
        reference = self.construct()
        self._listen()
        model = reference.model
        self.state = state_schema(model)
        self.eval_mode = self.module.uses_eval_mode
        draw = self._draw_any()
        self.inputs = [layout.layout_of(tensor) for tensor in draw.tensors]
        self.weights = [_entry_layout(entry.shape, entry.dtype) for entry in self.state]
        before = self._random_state()
        self._listen()
        with FlopCounterMode(display=False) as counter:
            spec, outputs = self.expected(reference, draw, None)
        after = self._random_state()
        self.draws_in_forward = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        self.output_spec = spec
        self.outputs = [_contiguous_layout(tensor) for tensor in outputs]
        floating = [t.dtype for t in (*draw.tensors, *model.parameters()) if t.is_floating_point()]
        self.facts = TaskFacts(
            flops=int(counter.get_total_flops()),
            input_bytes=sum(entry.nbytes for entry in self.inputs),
            parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
            output_bytes=sum(entry.nbytes for entry in self.outputs),
            dtype=tree.dtype_name(floating[0]) if floating else "float32",
            # cuDNN's recurrent layers are one operator that the counter does not know.
            flops_complete=not any(isinstance(part, torch.nn.RNNBase) for part in model.modules()),
        )
        self.memory_bytes = self._memory()
        """Of the device, for a whole evaluation."""

    def _memory(self) -> int:
        peak = self._device.peak_bytes()
        if not peak:
            return 0
        outputs = sum(entry.nbytes for entry in self.outputs)
        slots = sum(entry.nbytes for entry in (*self.inputs, *self.weights)) + outputs
        # The reference here and a submission like it, the slots, the judge's copy of the answer, two contexts.
        return 2 * peak + slots + outputs + _CONTEXTS_BYTES

    def construct(self) -> Reference:
        """A new Model from a fresh seed."""
        seed = fresh_seed()
        model = self.module.construct(seed, self._device.torch_device)
        return Reference(model, seed, snapshot_statistics(model))

    def perturb(self, reference: Reference) -> None:
        """Change the weights of `reference` by fresh noise."""
        perturb(reference.model, fresh_seed())
        reference.statistics = snapshot_statistics(reference.model)

    def draw(self, family: InputFamily | None = None) -> Draw:
        """Fresh inputs from the task's generator, or of `family`.

        Raises:
            TaskError: the generator gave other shapes than the first time.
        """
        draw = self._draw_any(family)
        if [layout.layout_of(tensor) for tensor in draw.tensors] != self.inputs:
            raise TaskError("the task's get_inputs returns other shapes on every call, which is not supported")
        return draw

    def expected(
        self, reference: Reference, draw: Draw, forward_seed: int | None
    ) -> tuple[list[Any], list[torch.Tensor]]:
        """The reference's output for `draw`, flattened. It may overwrite the draw's tensors."""
        restore_statistics(reference.model, reference.statistics)
        if forward_seed is not None:
            seed_all(forward_seed)
        with torch.no_grad():
            return tree.flatten(reference.model(*draw.arguments()))

    def forward_seed(self) -> int | None:
        """A seed for both sides' forward when the reference draws random numbers in it, else None."""
        return fresh_seed() if self.draws_in_forward else None

    def _draw_any(self, family: InputFamily | None = None) -> Draw:
        values = self.module.draw_inputs(fresh_seed(), self._device.torch_device)
        if family is not None:
            values = family.apply(values, fresh_seed())
        return Draw(*tree.flatten(values))

    def _random_state(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self._device.kind == "cuda":
            states.append(torch.cuda.get_rng_state())
        return states


def _plans(request: Evaluate) -> tuple[Trial, list[Trial]]:
    """The admission's trials, or the specification's for a task that no table knows."""
    plans = [Trial(family_named(p.family) if p.family else None, tuple(p.atol)) for p in request.plans]
    plans = plans or [Trial(None), *(Trial(family) for family in extra_trials(request.task_id))]
    own = next((plan for plan in plans if plan.family is None), Trial(None))
    return own, [plan for plan in plans if plan.family is not None]


def task_key(request: Evaluate) -> str:
    """What a task's cached context and baseline belong to."""
    return hashlib.sha256(f"{request.task_id}\0{request.task_source}\0{request.plans}".encode()).hexdigest()


def _entry_layout(shape: tuple[int, ...], dtype: str) -> SlotLayout:
    numel = 1
    for extent in shape:
        numel *= extent
    nbytes = numel * tree.dtype_from_name(dtype).itemsize
    return SlotLayout(nbytes, list(shape), layout.contiguous_strides(shape), dtype)


def _contiguous_layout(tensor: torch.Tensor) -> SlotLayout:
    return _entry_layout(tuple(tensor.shape), tree.dtype_name(tensor.dtype))
