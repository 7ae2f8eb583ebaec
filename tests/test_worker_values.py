"""The values, weights and task sources that the trusted judge handles, on a CPU-only PyTorch."""

from __future__ import annotations

import inspect
import math
import traceback
from typing import Any, NamedTuple

import msgspec
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from server.worker import tree  # noqa: E402
from server.worker.compare import compare  # noqa: E402
from server.worker.task_module import TaskError, TaskModule, load_task  # noqa: E402
from server.worker.weights import (  # noqa: E402
    perturb,
    restore_statistics,
    snapshot_statistics,
    state_schema,
    state_tensors,
)


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[1 << 24, 7], ids=["whole", "chunked"])
def chunk_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cuts tensors holds with tiny chunks too."""
    monkeypatch.setattr(tree, "CHUNK_ELEMENTS", request.param)


# ---------------------------------------------------------------- weights


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.first = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("bias", torch.tril(torch.ones(4, 4)))
        self.register_buffer("table", torch.arange(4), persistent=False)
        nn.init.zeros_(self.first.bias)

    def forward(self, x: Any) -> Any:
        return self.tied(self.first(self.norm(x)))


def test_state_schema_names_parameters_and_persistent_buffers() -> None:
    net = Net()
    schema = state_schema(net)
    assert ("first.weight", (8, 8), "float32") in schema and ("norm.num_batches_tracked", (), "int64") in schema
    names = [entry.name for entry in schema]
    assert "table" not in names and names == list(net.state_dict())
    assert [tuple(t.shape) for t in state_tensors(net)] == [entry.shape for entry in schema]


@pytest.mark.usefixtures("chunk_elements")
def test_perturb_changes_weights_and_statistics_only_and_follows_the_seed() -> None:
    torch.manual_seed(0)
    net, same, other = Net(), Net(), Net()
    same.load_state_dict(net.state_dict())
    other.load_state_dict(net.state_dict())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    global_state = torch.get_rng_state()
    perturb(net, 1)
    perturb(same, 1)
    perturb(other, 2)
    assert torch.equal(torch.get_rng_state(), global_state)
    after = net.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == set(after) - {"bias", "norm.num_batches_tracked"}
    assert net.tied.weight is net.first.weight
    assert all(torch.equal(a, b) for a, b in zip(state_tensors(net), state_tensors(same), strict=True))
    assert not torch.equal(net.first.weight, other.first.weight)
    change = (net.first.weight - before["first.weight"]).abs()
    assert 0.0 < float(change.detach().max()) < float(before["first.weight"].abs().max())
    assert bool((net.norm.weight - 1).abs().max() > 0.05) and bool((net.norm.weight > 0.3).all())
    assert bool((net.first.bias != 0).all()) and bool((after["norm.running_var"] > 0).all())
    x = rand(16, 8)
    assert bool(net.eval()(x).isfinite().all())
    result = compare([net(x)], [other.eval()(x)], task_id="level2/1_Anything", atol=1e-2, rtol=1e-2)
    assert result.outcome == "wrong_values"


@pytest.mark.usefixtures("chunk_elements")
def test_perturb_writes_weights_that_are_not_contiguous() -> None:
    layer = nn.Linear(8, 6)
    layer.weight = nn.Parameter(torch.randn(8, 6).t())
    before = layer.weight.detach().clone()
    perturb(layer, 1)
    assert bool((layer.weight != before).all()) and not layer.weight.is_contiguous()


def test_statistics_are_put_back_as_often_as_wanted() -> None:
    net = Net()
    saved = snapshot_statistics(net)
    for seed in range(2):
        net(rand(16, 8, seed=seed))
        assert int(net.norm.num_batches_tracked or 0) == 1
        net.bias = torch.zeros(2)
        restore_statistics(net, saved)
        assert int(net.norm.num_batches_tracked or 0) == 0 and net.bias.shape == (4, 4)
        assert bool((net.norm.running_mean == 0).all())


# ---------------------------------------------------------------- tasks

TASK = """
import random
import numpy as np
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features, rate):
        super().__init__()
        self.linear = nn.Linear(features, 4)
        self.drop = nn.Dropout(rate)

    def forward(self, x):
        return self.drop(self.linear(x))

def get_inputs():
    return [torch.rand(2, 3), torch.from_numpy(np.random.rand(2)), random.random(), (torch.arange(3), None)]

def get_init_inputs():
    return [3, RATE]
"""


def task(rate: float = 0.0) -> TaskModule:
    return load_task("level1/0_Test", TASK.replace("RATE", str(rate)))


def test_inputs_and_weights_follow_the_seed() -> None:
    loaded = task()
    first, again, other = (tree.flatten(loaded.draw_inputs(seed, "cpu")) for seed in (2**62 + 1, 2**62 + 1, 2**62))
    assert first[0] == again[0] != other[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], again[1], strict=True))
    assert not torch.equal(first[1][0], other[1][0]) and not torch.equal(first[1][1], other[1][1])
    assert torch.equal(
        loaded.construct(1, "cpu").get_parameter("linear.weight"),
        loaded.construct(1, "cpu").get_parameter("linear.weight"),
    )
    assert not torch.equal(
        loaded.construct(1, "cpu").get_parameter("linear.weight"),
        loaded.construct(2, "cpu").get_parameter("linear.weight"),
    )


def test_inputs_go_to_the_device_even_when_the_task_made_them_on_the_cpu() -> None:
    drawn = task().draw_inputs(0, "meta")
    assert [t.device.type for t in tree.flatten(drawn)[1]] == ["meta"] * 3


def test_mode_follows_dropout() -> None:
    assert task(0.0).construct(0, "cpu").training and not task(0.0).uses_eval_mode
    assert not task(0.2).construct(0, "cpu").training and task(0.2).uses_eval_mode


@pytest.mark.parametrize(
    ("layer", "eval_mode"),
    [
        ("nn.LSTM(2, 2, num_layers=2, dropout=0.1)", True),
        ("nn.GRU(2, 2, dropout=0.0)", False),
        ("nn.MultiheadAttention(2, 1, dropout=0.5)", True),
        ("nn.TransformerEncoderLayer(2, 1, dim_feedforward=2, dropout=0.0)", False),
        ("nn.BatchNorm1d(2)", False),
    ],
)
def test_mode_sees_dropout_inside_layers(layer: str, eval_mode: bool) -> None:
    source = TASK.replace("nn.Dropout(rate)", layer).replace("RATE", "0")
    assert load_task("level1/0_Test", source).uses_eval_mode is eval_mode


def test_source_is_there_for_inspect_and_tracebacks() -> None:
    loaded = load_task("level1/0_Test", TASK.replace("RATE", "0").replace("torch.rand(2, 3)", "1 / 0"))
    assert "self.linear = nn.Linear(features, 4)" in inspect.getsource(loaded.module.Model)
    with pytest.raises(TaskError, match="get_inputs of task level1/0_Test failed: ZeroDivisionError") as caught:
        loaded.draw_inputs(0, "cpu")
    assert "return [1 / 0" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("class Model(nn.Module)", "class Mod(nn.Module)"), "does not define a class Model"),
        (("class Model(nn.Module)", "class Model(object)"), "does not define a class Model"),
        (("def get_inputs", "def get"), "does not define a function get_inputs"),
        (("def get_init_inputs", "def get"), "does not define a function get_init_inputs"),
        (("import torch\n", "import no_such_module\n"), "No module named 'no_such_module'"),
        (("class Model", "class class"), "SyntaxError"),
    ],
)
def test_bad_sources_are_refused_with_a_sentence(change: tuple[str, str], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        load_task("level1/0_Test", TASK.replace(*change))


# ---------------------------------------------------------------- trees


class Pair(NamedTuple):
    left: Any
    right: Any


def test_round_trip_over_msgpack() -> None:
    a, b, c = torch.ones(1), torch.zeros(2), torch.full((3,), 2.0)
    value = (a, [b, 1, 2**64 - 1, -(2**63)], {"z": c, "a": (True, None, "x")}, Pair(0.5, math.inf), math.nan)
    spec, tensors = tree.flatten(value)
    spec = msgspec.msgpack.decode(msgspec.msgpack.encode(spec))
    back = tree.unflatten(spec, tensors)
    assert back[0] is a and back[1][0] is b and back[2]["z"] is c
    assert (
        back[1][1:] == [1, 2**64 - 1, -(2**63)] and back[2]["a"] == (True, None, "x") and type(back[2]["a"][0]) is bool
    )
    assert back[3] == (0.5, math.inf) and math.isnan(back[4])
    assert tree.tensor_paths(spec) == ["output[0]", "output[1][0]", "output[2]['z']"]


def test_values_that_cannot_cross() -> None:
    loop: list[Any] = []
    loop.append(loop)
    subclass = torch.ones(2).as_subclass(type("Lazy", (torch.Tensor,), {}))
    for value in (2**64, -(2**63) - 1, {1: 2}, {3}, b"x", 1j, object(), loop, [0] * 10_001, subclass):
        with pytest.raises(tree.TreeError):
            tree.flatten(value)


@pytest.mark.parametrize(
    "spec",
    [
        None, [], ["x"], ["x", 1], ["x", -1], ["x", True], ["x", "0"], ["v", 1], ["q", []], [["x"], 0], ["t", "xx"],
        ["t", [["x", 0], ["x", 0]]], ["t", [["x", 1], ["x", 0]]], ["t", [["x", 0], ["v", [1]]]],
        ["d", [["b", ["x", 0]], ["a", ["v", 1]]]], ["d", [["a", ["x", 0]], ["a", ["v", 1]]]], ["d", [[1, ["x", 0]]]],
        ["t", [["x", 0], ["v", 2**70]]], ["t", [["x", 0], *([["v", 0]] * 10_000)]], {"x": 0},
    ],
)  # fmt: skip
def test_invalid_specs_are_refused(spec: Any) -> None:
    with pytest.raises(tree.TreeError):
        tree.unflatten(spec, [torch.ones(1)])


def test_depth_of_a_spec_is_bounded() -> None:
    spec: Any = ["x", 0]
    for _ in range(5000):
        spec = ["t", [spec]]
    with pytest.raises(tree.TreeError, match="nested"):
        tree.validate(spec, 1)


def test_a_spec_arrives_as_it_was_sent() -> None:
    value = (torch.ones(1), [1, 2**64 - 1, -(2**63)], {"z": torch.ones(2), "a": (True, None, "x", 0.5, -0.0)}, [])
    spec, tensors = tree.flatten(value)
    assert tree.received(tree.packed(spec), len(tensors)) == spec
    with pytest.raises(tree.TreeError):
        tree.received(tree.packed(spec), len(tensors) + 1)
    largest = tree.flatten([float(number) for number in range(tree.MAX_NODES - 1)])[0]
    assert tree.received(tree.packed(largest), 0) == largest


HOSTILE = {
    "a map": ["v", {1: 2}],
    "a map of maps": ["v", {"a": {0.5: {"b": 1}}}],
    "a map whose keys collide": ["v", {(-1, -2): 1, (-2, -1): 2}],
    "a map for a node": {"t": []},
    "a map in a tuple": ["t", [{"x": 0}]],
    "a list for a scalar": ["v", [1]],
    "bytes": ["v", b"x"],
    "a key that is no string": ["d", [[1, ["v", 1]]]],
    "three parts": ["v", 1, 2],
    "an unknown kind": ["q", 1],
    "text for an index": ["x", "0"],
    "too long": ["v", "x" * tree.MAX_SPEC_BYTES],
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_but_a_spec_is_made_of_a_message(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(spec: Any, count: int) -> None:
        raise AssertionError(f"{str(spec)[:80]} was made")

    monkeypatch.setattr(tree, "validate", validate)
    with pytest.raises(tree.TreeError):
        tree.received(tree.packed(spec), 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x92\xa1t\x91" * 30_000 + b"\x92\xa1v\xc0",  # nested
        b"\x92\xa1t\x91" * 200 + b"\x92\xa1v\xc0",
        b"\x92\xa1t\xdd\xff\xff\xff\xff",  # says that it holds 2**32 nodes
        b"\x92\xa1v\xdb\xff\xff\xff\xff",
        b"\x92\xa1v\xa2\xff\xfe",  # not UTF-8
        b"\x92\xa1t\xdd\x00\x00\x75\x30" + b"\x92\xa1t\x90" * 30_000,  # as many as fit in
    ],
)
def test_malformed_messages_are_no_specs(body: bytes) -> None:
    with pytest.raises(tree.TreeError):
        tree.received(msgspec.Raw(body), 0)


@pytest.mark.parametrize(
    ("actual", "expected", "words"),
    [
        ((0, 1), [0, 1], None),
        ({"b": 0, "a": (1,)}, {"a": [1], "b": 0}, None),
        (torch.ones(1), (torch.ones(1),), "output should be a tuple of 1"),
        ((0, torch.ones(1)), (0, 1.0), "output[1] should be a Python float"),
        ([0], [0, 1], "returned a list of 1"),
        ({"a": 0}, {"b": 0}, "a dict with the 1 keys 'b'"),
        ([None], [torch.ones(1)], "a tensor, as the reference returns; ModelNew returned None"),
    ],
)
def test_same_structure(actual: Any, expected: Any, words: str | None) -> None:
    sentence = tree.same_structure(tree.flatten(actual)[0], tree.flatten(expected)[0])
    if words is None:
        assert sentence is None
    else:
        assert sentence is not None and words in sentence


def test_tensor_meta() -> None:
    meta = tree.TensorMeta.of(torch.empty(3, 0, 5, dtype=torch.bfloat16))
    assert (meta.shape, meta.dtype, meta.nbytes) == ([3, 0, 5], "bfloat16", 0)
    assert tree.TensorMeta([3, 5], "float64").nbytes == 120
    tree.TensorMeta([3, 5], "bool").check()
    for shape, dtype in (([-1, -4], "float32"), ([2**40, 2**40], "int8"), ([1] * 99, "int8"), ([1], "Tensor")):
        with pytest.raises(tree.TreeError):
            tree.TensorMeta(shape, dtype).check()
    for tensor in (torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse()):
        with pytest.raises(tree.TreeError):
            tree.TensorMeta.of(tensor)


@pytest.mark.usefixtures("chunk_elements")
def test_chunks_cover_a_tensor_in_order_and_are_bounded() -> None:
    for shape in ((), (0, 3), (5,), (2, 3, 4), (40, 3), (3, 40), (2, 2, 33)):
        whole = torch.arange(math.prod(shape)).reshape(shape)
        for tensor in (whole, whole.movedim(0, -1) if whole.dim() else whole):
            pieces = list(tree.chunks(tensor))
            assert all(0 < piece.numel() <= tree.CHUNK_ELEMENTS for _, piece in pieces)
            joined = torch.cat([piece for _, piece in pieces]) if pieces else tensor.flatten()
            assert torch.equal(joined, tensor.flatten())
            assert all(int(tensor.flatten()[offset]) == int(piece[0]) for offset, piece in pieces)
        for _, piece in tree.chunks(whole):
            piece.zero_()
        assert not bool(whole.any())
