"""Whatever a candidate answers is wrong, right or its own error, and never a fault of the judge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import msgspec
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server.worker import calls, layout, tree
from server.worker.answers import interpreting
from server.worker.calls import Evaluation
from server.worker.compare import Comparison, ReferenceUnusable
from server.worker.lease import Cancelled, InfrastructureFault
from server.worker.process import SubmissionFailed
from server.worker.protocol import OutputMeta, Ran

VALUE = {"a": torch.ones(2, 3), "b": (1, 0.5, "text", None)}
SPEC, TENSORS = tree.flatten(VALUE)
RIGHT = Ran(1, 1.0, 1.0, tree.packed(SPEC), [OutputMeta([2, 3], [3, 1], "float32")])


def evaluation() -> Evaluation:
    """One that holds its copy of the outputs, and nothing else."""
    made = Evaluation.__new__(Evaluation)
    made._request = SimpleNamespace(atol=1e-2, rtol=1e-2)  # type: ignore[assignment]
    made._task = SimpleNamespace(outputs=[layout.layout_of(TENSORS[0])])  # type: ignore[assignment]
    block = torch.zeros(24, dtype=torch.uint8)
    made._slots = SimpleNamespace(answer=lambda index, entry: layout.view(block, entry))  # type: ignore[assignment]
    return made


def read(answer: Ran) -> list[torch.Tensor] | Comparison:
    """As the judge reads an answer that has come over a socket."""
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Ran)
    return evaluation()._answered(received, SPEC, TENSORS)


_NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 7)
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.floats() | st.text(max_size=3)
_SPECS = st.recursive(
    st.tuples(st.just("v"), _SCALARS) | st.tuples(st.just("x"), _NUMBERS),
    lambda inner: (
        st.tuples(st.sampled_from("tl"), st.lists(inner, max_size=3))
        | st.tuples(st.just("d"), st.lists(st.tuples(st.text(max_size=2), inner), max_size=3))
    ),
    max_leaves=6,
)
_JUNK = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner), max_leaves=6
)
_METAS = st.builds(
    OutputMeta,
    st.just([2, 3]) | st.lists(_NUMBERS, max_size=4),
    st.sampled_from([[3, 1], [1, 2]]) | st.lists(_NUMBERS, max_size=4),
    st.sampled_from(["float32", "int8", "object", ""]) | st.text(max_size=3),
    st.just(0) | _NUMBERS,
    st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(spec=st.just(SPEC) | _SPECS | _JUNK, outputs=st.lists(_METAS, min_size=1, max_size=2))
def test_any_answer_is_read_or_its_senders_failure(spec: Any, outputs: list[OutputMeta]) -> None:
    try:
        found = read(Ran(1, 1.0, 1.0, tree.packed(spec), outputs))
    except SubmissionFailed:
        return
    if isinstance(found, Comparison):
        assert not found.ok and found.sentence(["output"])
    else:
        assert [part.shape for part in found] == [TENSORS[0].shape]


def test_the_right_answer_is_read() -> None:
    (part,) = read(RIGHT)  # type: ignore[misc]
    assert torch.equal(part, torch.zeros(2, 3))


@pytest.mark.parametrize(
    "error", [OverflowError, RecursionError, TypeError, KeyError, RuntimeError("as_strided"), AssertionError]
)
def test_an_error_while_an_answer_is_read_is_its_senders(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    def fails(*_: object) -> None:
        raise error

    for name in ("received", "same_structure"):
        with monkeypatch.context() as patch, pytest.raises(SubmissionFailed) as failure:
            patch.setattr(tree, name, fails)
            read(RIGHT)
        assert failure.value.outcome == "protocol_error"
    monkeypatch.setattr(layout, "answered_layout", fails)
    with pytest.raises(SubmissionFailed) as failure:
        read(RIGHT)
    assert failure.value.outcome == "protocol_error"


@pytest.mark.parametrize(
    "error",
    [
        *(
            SubmissionFailed("timeout", "why"),
            InfrastructureFault("disk", "why"),
            Cancelled(),
            ReferenceUnusable("why"),
        ),
        *(torch.OutOfMemoryError("why"), MemoryError(), OSError("why")),
    ],
)
def test_what_is_not_its_doing_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, interpreting():
        raise error
    assert raised.value is error


def test_an_error_of_ours_in_the_comparison_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("ours")

    made = evaluation()
    made._task.task_id = "level1/0_Test"
    monkeypatch.setattr(calls, "compare", fails)
    with pytest.raises(TypeError, match="ours"):
        made._judge(RIGHT, SPEC, TENSORS, SimpleNamespace(arguments=lambda: []), ())  # type: ignore[arg-type]
