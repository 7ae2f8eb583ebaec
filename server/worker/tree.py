"""Values that cross between judge and candidate: a plain-data spec and a flat list of tensors. No pickles.

A spec is msgpack-able: `["t", [...]]` a tuple, `["l", [...]]` a list, `["d", [[key, spec], ...]]` a dict in key order,
`["v", scalar]` an int, float, bool, str or None, `["x", i]` the i-th tensor. A spec is canonical: tensors are numbered
0, 1, 2, ... in the order they are met, and dict keys increase strictly, so two equal structures have equal specs and
their tensors can be compared one by one. What a candidate sends is checked with `validate` before it is used.

Touches torch only: no files, no environment, no sockets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

MAX_DEPTH = 32
MAX_NODES = 10_000
MAX_DIMS = 32
MAX_TENSOR_BYTES = 1 << 45
MAX_SPEC_BYTES = 128 << 10  # as a message; MAX_NODES numbers fit in, and reading it takes a few milliseconds
CHUNK_ELEMENTS = 1 << 24  # of one chunk: 64 MiB of float32, so the few temporaries of a comparison stay small

Spec = list[Any]
Scalar = int | float | bool | str | None

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


class TreeError(ValueError):
    """A value that cannot cross, or a spec that is not valid. The message is a sentence for the submitter."""


def dtype_from_name(name: str) -> torch.dtype:
    """The dtype called `name` ("float32"). Raises TreeError for one outside the allow-list."""
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise TreeError(f"tensors of dtype {str(name)[:40]!r} are not supported; use one of {', '.join(_DTYPES)}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of `dtype`, as `dtype_from_name` reads it. Raises TreeError for one outside the allow-list."""
    name = str(dtype).removeprefix("torch.")
    dtype_from_name(name)
    return name


class TensorMeta(msgspec.Struct, frozen=True):
    """Shape and dtype of a tensor that travels as contiguous bytes."""

    shape: list[int]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """Raises TreeError: the tensor is sparse, quantized, or of a dtype outside the allow-list."""
        if tensor.layout is not torch.strided:
            raise TreeError(f"tensors of layout {tensor.layout} are not supported; return a dense tensor")
        return cls(list(tensor.shape), dtype_name(tensor.dtype))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * dtype_from_name(self.dtype).itemsize

    def check(self) -> None:
        """Raises TreeError unless this describes a tensor that can exist. For metas from a candidate."""
        if len(self.shape) > MAX_DIMS or any(size < 0 or size > MAX_TENSOR_BYTES for size in self.shape):
            raise TreeError(f"a tensor cannot have the shape {str(self.shape)[:200]}")
        if self.nbytes > MAX_TENSOR_BYTES:
            raise TreeError(f"a tensor of {self.nbytes} bytes is too large")


def flatten(value: Any) -> tuple[Spec, list[torch.Tensor]]:
    """Split nested tuples, lists and str-keyed dicts into a spec and the tensors in order.

    NamedTuples become tuples, and dicts come back in key order.

    Raises:
        TreeError: another type, an int beyond 64 bits, or deeper or larger than the bounds (also: it contains itself).
    """
    tensors: list[torch.Tensor] = []
    return _split(value, 0, tensors, [0]), tensors


def _split(item: Any, depth: int, tensors: list[torch.Tensor], nodes: list[int]) -> Spec:
    # Not a closure: a function that refers to itself is a cycle, and would keep the tensors until a collection.
    nodes[0] += 1
    _bound(depth, nodes[0])
    if isinstance(item, torch.Tensor):
        if type(item) not in (torch.Tensor, torch.nn.Parameter):
            raise TreeError(f"a {type(item).__name__} is a subclass of torch.Tensor; use a plain tensor")
        tensors.append(item)
        return ["x", len(tensors) - 1]
    if isinstance(item, tuple | list):
        parts = [_split(part, depth + 1, tensors, nodes) for part in item]
        return ["t" if isinstance(item, tuple) else "l", parts]
    if isinstance(item, dict):
        if not all(type(key) is str for key in item):
            raise TreeError("the keys of a dict must be strings")
        return ["d", [[key, _split(item[key], depth + 1, tensors, nodes)] for key in sorted(item)]]
    _check_scalar(item)
    return ["v", item]


def unflatten(spec: Spec, tensors: list[torch.Tensor]) -> Any:
    """The value that `flatten` split. Raises TreeError for a spec that is not valid for these tensors."""
    validate(spec, len(tensors))

    return _build(spec, tensors)


def _build(node: Spec, tensors: list[torch.Tensor]) -> Any:
    kind, content = node
    if kind == "x":
        return tensors[content]
    if kind == "v":
        return content
    if kind == "d":
        return {key: _build(part, tensors) for key, part in content}
    parts = [_build(part, tensors) for part in content]
    return tuple(parts) if kind == "t" else parts


def validate(spec: Any, tensor_count: int) -> None:
    """Check a spec that somebody else made.

    Raises:
        TreeError: it is malformed, beyond the bounds, or does not use tensors 0..tensor_count-1 once each, in order.
    """
    seen = nodes = 0

    def visit(node: Any, depth: int) -> None:
        nonlocal seen, nodes
        nodes += 1
        _bound(depth, nodes)
        kind, content = _pair(node)
        if kind == "x":
            if type(content) is not int or content != seen or content >= tensor_count:
                raise TreeError("the structure names a tensor that is not the next one")
            seen += 1
        elif kind == "v":
            _check_scalar(content)
        elif kind in ("t", "l") and isinstance(content, list | tuple):
            for part in content:
                visit(part, depth + 1)
        elif kind == "d" and isinstance(content, list | tuple):
            last: str | None = None
            for entry in content:
                key, part = _pair(entry)
                if type(key) is not str or (last is not None and key <= last):
                    raise TreeError("the keys of a dict must be strings in increasing order")
                last = key
                visit(part, depth + 1)
        else:
            raise TreeError("the structure has a node of an unknown kind")

    visit(spec, 0)
    if seen != tensor_count:
        raise TreeError(f"the structure names {seen} tensors, and {tensor_count} came with it")


class _Tuple(msgspec.Struct, tag="t", array_like=True, forbid_unknown_fields=True, gc=False):
    parts: list[_Node]


class _List(msgspec.Struct, tag="l", array_like=True, forbid_unknown_fields=True, gc=False):
    parts: list[_Node]


class _Dict(msgspec.Struct, tag="d", array_like=True, forbid_unknown_fields=True, gc=False):
    entries: list[tuple[str, _Node]]


class _Scalar(msgspec.Struct, tag="v", array_like=True, forbid_unknown_fields=True, gc=False):
    value: Scalar


class _Tensor(msgspec.Struct, tag="x", array_like=True, forbid_unknown_fields=True, gc=False):
    index: int


_Node = _Tuple | _List | _Dict | _Scalar | _Tensor
_decoder = msgspec.msgpack.Decoder(_Node)


def packed(spec: Spec) -> msgspec.Raw:
    """A spec as it is sent to somebody who reads it with `received`."""
    return msgspec.Raw(msgspec.msgpack.encode(spec))


def received(message: msgspec.Raw, tensor_count: int) -> Spec:
    """The spec that somebody else sent: nothing but the grammar of this module is ever made of it.

    Raises:
        TreeError: it is malformed, beyond the bounds, or not valid for so many tensors.
    """
    if memoryview(message).nbytes > MAX_SPEC_BYTES:
        raise TreeError(f"the structure takes more than {MAX_SPEC_BYTES} bytes")
    try:
        node = _decoder.decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TreeError(f"the structure is malformed: {error}") from error
    spec = _plain(node, 0, [0])
    validate(spec, tensor_count)
    return spec


def _plain(node: _Node, depth: int, nodes: list[int]) -> Spec:
    nodes[0] += 1
    _bound(depth, nodes[0])
    if isinstance(node, _Tensor):
        return ["x", node.index]
    if isinstance(node, _Scalar):
        return ["v", node.value]
    if isinstance(node, _Dict):
        return ["d", [[key, _plain(part, depth + 1, nodes)] for key, part in node.entries]]
    return ["t" if isinstance(node, _Tuple) else "l", [_plain(part, depth + 1, nodes) for part in node.parts]]


def scalars(spec: Spec) -> list[tuple[str, Scalar]]:
    """The scalars of a valid spec with their paths ("output[1]['loss']"), in order."""
    found: list[tuple[str, Scalar]] = []

    def visit(node: Spec, path: str) -> None:
        kind, content = node
        if kind == "v":
            found.append((path, content))
        for step, part in _children(node):
            visit(part, path + step)

    visit(spec, "output")
    return found


def tensor_paths(spec: Spec) -> list[str]:
    """Where each tensor of a valid spec is: "output", "output[1]['loss']", ..., in order."""
    found: list[str] = []

    def visit(node: Spec, path: str) -> None:
        if node[0] == "x":
            found.append(path)
        for step, part in _children(node):
            visit(part, path + step)

    visit(spec, "output")
    return found


def same_structure(actual: Spec, expected: Spec) -> str | None:
    """None when two valid specs have the same structure, else a sentence that says where they differ.

    A tuple and a list of the same length are the same. Scalars stand for themselves here, whatever their value:
    `compare.compare_scalars` compares them.
    """

    def visit(left: Spec, right: Spec, path: str) -> str | None:
        kinds = {"l": "t"}
        different = kinds.get(left[0], left[0]) != kinds.get(right[0], right[0])
        if not different and left[0] == "d":
            different = [key for key, _ in left[1]] != [key for key, _ in right[1]]
        elif not different and left[0] in ("t", "l"):
            different = len(left[1]) != len(right[1])
        if different:
            return f"{path} should be {_describe(right)}, as the reference returns; ModelNew returned {_describe(left)}"
        for (step, left_part), (_, right_part) in zip(_children(left), _children(right), strict=True):
            sentence = visit(left_part, right_part, path + step)
            if sentence is not None:
                return sentence
        return None

    return visit(actual, expected, "output")


def chunks(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Cut a tensor into flat pieces of at most CHUNK_ELEMENTS, with the offset of each in row-major order.

    Pieces of a contiguous tensor are views, which may be written; pieces of any other tensor are copies. Tensors of
    the same shape are cut alike. A tensor without elements has no pieces.
    """

    if tensor.numel():
        yield from _cut(tensor, 0)


def _cut(part: torch.Tensor, offset: int) -> Iterator[tuple[int, torch.Tensor]]:
    if part.numel() <= CHUNK_ELEMENTS:
        yield offset, part.reshape(-1)
        return
    row = part.numel() // part.shape[0]
    step = max(1, CHUNK_ELEMENTS // row)
    for start in range(0, part.shape[0], step):
        if row > CHUNK_ELEMENTS:
            yield from _cut(part[start], offset + start * row)
        else:
            yield offset + start * row, part[start : start + step].reshape(-1)


def _children(node: Spec) -> list[tuple[str, Spec]]:
    kind, content = node
    if kind in ("t", "l"):
        return [(f"[{index}]", part) for index, part in enumerate(content)]
    if kind == "d":
        return [(f"[{key[:40]!r}]", part) for key, part in content]
    return []


def _describe(node: Spec) -> str:
    kind, content = node
    if kind == "x":
        return "a tensor"
    if kind == "v":
        return f"a Python {type(content).__name__}" if content is not None else "None"
    if kind == "d":
        keys = ", ".join(repr(key[:40]) for key, _ in content[:8])
        return f"a dict with the {len(content)} keys {keys}{', ...' if len(content) > 8 else ''}"
    return f"a {'tuple' if kind == 't' else 'list'} of {len(content)}"


def _pair(node: Any) -> tuple[Any, Any]:
    if not isinstance(node, list | tuple) or len(node) != 2:
        raise TreeError("the structure has a node that is not a pair")
    return node[0], node[1]


def _bound(depth: int, nodes: int) -> None:
    if depth > MAX_DEPTH:
        raise TreeError(f"the value is nested more than {MAX_DEPTH} deep")
    if nodes > MAX_NODES:
        raise TreeError(f"the value has more than {MAX_NODES} parts")


def _check_scalar(value: Any) -> None:
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise TreeError("an int must fit in 64 bits")
    if value is not None and type(value) not in (int, float, bool, str):
        raise TreeError(
            f"a {type(value).__name__} cannot be passed on; use tensors, numbers, bools, strings, None, and tuples, "
            "lists and dicts of them"
        )
