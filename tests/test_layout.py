"""Where tensors lie in slots: nothing a candidate answers reaches outside its slot or maps two elements to one byte."""

from __future__ import annotations

import itertools
import math

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server.worker import layout
from server.worker.protocol import OutputMeta, SlotLayout
from server.worker.tree import dtype_from_name

_SHAPES = st.lists(st.integers(0, 4), max_size=4)
_STRIDES = st.lists(st.integers(-3, 70), max_size=5)


def slot_for(shape: list[int], dtype: str) -> SlotLayout:
    """The layout a judge hands out for a contiguous output."""
    nbytes = math.prod(shape) * dtype_from_name(dtype).itemsize
    return SlotLayout(nbytes, shape, layout.contiguous_strides(shape), dtype)


def offsets(shape: list[int], strides: list[int]) -> list[int]:
    """The offset of every element, in elements."""
    indices = itertools.product(*(range(extent) for extent in shape))
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


@settings(max_examples=400)
@given(shape=_SHAPES, strides=_STRIDES, offset=st.sampled_from([0, 0, 0, 1, -1]), data=st.data())
def test_an_accepted_answer_fills_its_slot_exactly(
    shape: list[int], strides: list[int], offset: int, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):  # a permutation of a contiguous tensor's dimensions: what honest answers are
        order = data.draw(st.permutations(range(len(shape))))
        strides = list(torch.empty([shape[axis] for axis in order]).stride())
        strides = [strides[order.index(axis)] for axis in range(len(shape))]
    entry = slot_for(shape, "int32")
    answered = layout.answered_layout(OutputMeta(shape, strides, "int32", offset), entry)
    if answered is None:
        return
    assert answered.nbytes == entry.nbytes
    assert sorted(offsets(shape, answered.strides)) == list(range(math.prod(shape)))
    slot = torch.zeros(entry.nbytes, dtype=torch.uint8)
    view = layout.view(slot, answered)
    assert list(view.shape) == shape
    view.fill_(-1)
    assert bool((slot == 0xFF).all())


@given(shape=st.lists(st.integers(1, 4), max_size=4), data=st.data())
def test_every_order_of_dimensions_is_accepted(shape: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.empty(shape).permute(*order) if shape else torch.empty(())
    meta = OutputMeta(list(tensor.shape), list(tensor.stride()), "float32")
    assert layout.answered_layout(meta, slot_for(list(tensor.shape), "float32")) is not None


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ([4], [0], 0),  # every element in one place
        ([4], [2], 0),  # runs past the end
        ([4], [-1], 0),
        ([4], [1], 4),  # starts elsewhere
        ([4], [1], -4),
        ([2, 2], [1, 1], 0),  # overlapping rows
        ([2, 2], [2], 0),  # fewer strides than dimensions
        ([2], [1, 1], 0),
        ([2, 2], [2**62, 1], 0),
        ([4], [2**64], 0),
    ],
)
def test_answers_that_would_leave_the_slot_or_overlap(shape: list[int], strides: list[int], offset: int) -> None:
    assert layout.answered_layout(OutputMeta(shape, strides, "float32", offset), slot_for(shape, "float32")) is None


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        (torch.empty(2, 3), [3, 1]),
        (torch.empty(3, 2).t(), [1, 2]),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), [60, 1, 15, 3]),
        (torch.empty(1).expand(4), [1]),  # not dense: stored contiguous
        (torch.empty(4, 4)[:, :2], [2, 1]),
        (torch.empty(()), []),
        (torch.empty(0, 3), None),
    ],
)
def test_a_dense_tensor_keeps_its_order_and_others_become_contiguous(
    tensor: torch.Tensor, strides: list[int] | None
) -> None:
    entry = layout.layout_of(tensor)
    assert entry.nbytes == tensor.numel() * 4
    if strides is not None:
        assert entry.strides == strides
    view = layout.view(torch.zeros(entry.nbytes, dtype=torch.uint8), entry)
    assert view.shape == tensor.shape


@given(shapes=st.lists(st.tuples(_SHAPES, st.sampled_from(["float32", "float16", "bool", "int64"])), max_size=6))
def test_weights_share_a_block_without_overlap(shapes: list[tuple[list[int], str]]) -> None:
    entries = [slot_for(shape, dtype) for shape, dtype in shapes]
    block = torch.zeros(layout.weights_nbytes(entries), dtype=torch.uint8)
    views = layout.weight_views(block, entries)
    spans = []
    for view, entry in zip(views, entries, strict=True):
        assert (list(view.shape), view.dtype) == (entry.shape, dtype_from_name(entry.dtype))
        if entry.nbytes:
            start = view.data_ptr() - block.data_ptr()
            assert start % layout.WEIGHT_ALIGNMENT == 0
            assert start + entry.nbytes <= block.numel()
            spans.append((start, start + entry.nbytes))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(spans)))
