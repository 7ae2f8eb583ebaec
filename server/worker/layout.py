"""Where a tensor lies in a slot: the layouts the judge hands out and the ones a candidate may answer with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from server.worker.protocol import OutputMeta, SlotLayout
from server.worker.tree import dtype_from_name, dtype_name

# Far beyond any tensor, and within what as_strided takes: an extent of 1 leaves its stride free otherwise.
MAX_STRIDE = 1 << 48


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one block without gaps or overlap, in any order of dimensions."""
    if 0 in shape:
        return True
    expected = 1
    for stride, extent in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e != 1):
        if stride != expected:
            return False
        expected *= extent
    return True


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    strides: list[int] = []
    step = 1
    for extent in reversed(list(shape)):
        strides.append(step)
        step *= max(1, extent)
    return strides[::-1]


def layout_of(tensor: torch.Tensor) -> SlotLayout:
    """The layout that keeps a dense tensor's order of dimensions; other tensors become contiguous."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    if not is_dense(shape, strides):
        strides = contiguous_strides(shape)
    return SlotLayout(tensor.numel() * tensor.element_size(), shape, strides, dtype_name(tensor.dtype))


def view(slot: torch.Tensor, layout: SlotLayout) -> torch.Tensor:
    """The tensor that `layout` describes, in a slot's flat uint8 memory."""
    dtype = dtype_from_name(layout.dtype)
    if layout.nbytes == 0:
        return torch.empty(layout.shape, dtype=dtype, device=slot.device)
    return slot[: layout.nbytes].view(dtype).as_strided(layout.shape, layout.strides)


def answered_layout(meta: OutputMeta, expected: SlotLayout) -> SlotLayout | None:
    """The layout a candidate answered with, checked against the slot; None when it would leave the slot or overlap.

    Shape and dtype equal the expected ones (the caller has compared them), so a dense layout at offset 0 has exactly
    the slot's bytes.
    """
    if len(meta.strides) != len(meta.shape) or meta.offset != 0:
        return None
    if any(not 0 <= stride <= MAX_STRIDE for stride in meta.strides):
        return None
    if not is_dense(meta.shape, meta.strides):
        return None
    return SlotLayout(expected.nbytes, meta.shape, meta.strides, meta.dtype)


WEIGHT_ALIGNMENT = 256


def weights_nbytes(layouts: Sequence[SlotLayout]) -> int:
    """The size of the block that holds all of `layouts`, each at a multiple of WEIGHT_ALIGNMENT."""
    return sum(-(-entry.nbytes // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT for entry in layouts)


def weight_views(block: torch.Tensor, layouts: Sequence[SlotLayout]) -> list[torch.Tensor]:
    """The tensors of `layouts` in a block of `weights_nbytes`."""
    views, offset = [], 0
    for entry in layouts:
        views.append(view(block[offset:], entry))
        offset += -(-entry.nbytes // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
    return views
