"""The memory that one evaluation shares with its candidate: made, poisoned, copied and removed by the judge."""

from __future__ import annotations

import os

import torch

from server.worker import layout, tree
from server.worker.device import Device, Slot
from server.worker.protocol import GATE_BYTES, SlotLayout
from server.worker.task_context import TaskContext


class SharedSlots:
    """The memory one evaluation shares with its candidate, and the judge's private copies of the outputs."""

    def __init__(self, task: TaskContext, device: Device) -> None:
        self._device = device
        self._slots: list[Slot] = []
        self.fds: list[int] = []
        try:
            sizes = [entry.nbytes for entry in (*task.inputs, *task.outputs)]
            for nbytes in (*sizes, layout.weights_nbytes(task.weights), GATE_BYTES):
                slot, fd = device.allocate(nbytes)
                self._slots.append(slot)
                self.fds.append(fd)
            blocks = [slot.tensor for slot in self._slots]
            assert all(block is not None for block in blocks)
            split = len(task.inputs)
            self._input_blocks = blocks[:split]
            self._output_blocks = blocks[split:-2]
            self.inputs = [layout.view(b, e) for b, e in zip(self._input_blocks, task.inputs, strict=True)]  # type: ignore[arg-type]
            self.weights = layout.weight_views(blocks[-2], task.weights)  # type: ignore[arg-type]
            self.gate: torch.Tensor = blocks[-1].zero_()  # type: ignore[union-attr]
            self._snapshots = [torch.empty_like(block) for block in self._output_blocks]  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise
        self._poison = [0xFF if tree.dtype_from_name(e.dtype).is_floating_point else None for e in task.outputs]
        self._bools = [e.dtype == "bool" for e in task.outputs]
        self._flip = False

    def poison(self) -> None:
        """Overwrite the outputs: NaN for floats, for the others a pattern that changes from call to call."""
        self._flip = not self._flip
        for block, pattern, is_bool in zip(self._output_blocks, self._poison, self._bools, strict=True):
            other = int(self._flip) if is_bool else 0x55 if self._flip else 0xAA
            block.fill_(pattern if pattern is not None else other)  # type: ignore[union-attr]

    def snapshot(self) -> None:
        for mine, shared in zip(self._snapshots, self._output_blocks, strict=True):
            self._device.copy(mine, shared)  # type: ignore[arg-type]

    def answer(self, index: int, entry: SlotLayout) -> torch.Tensor:
        """Output `index` as the judge's copy holds it."""
        return layout.view(self._snapshots[index], entry)

    def close(self) -> None:
        for name in ("inputs", "weights", "gate", "_snapshots", "_input_blocks", "_output_blocks"):
            self.__dict__.pop(name, None)
        for fd in self.fds:
            os.close(fd)
        for slot in self._slots:
            slot.close()
        self.fds, self._slots = [], []
