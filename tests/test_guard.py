"""The dispatch guard on CPU tensors: what a forward may do, what it may not, and where outputs are placed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from server.worker.guard import DispatchGuard, GuardViolation, OutputPlacement

CPU = torch.device("cpu")
Op = Callable[[torch.Tensor], object]


def run(op: Op, x: torch.Tensor | None = None, deny: bool = True) -> DispatchGuard:
    """The guard after `op` ran under it on a 4x6 tensor."""
    x = torch.arange(24.0).view(4, 6) if x is None else x
    guard = DispatchGuard(CPU, None, deny)
    with torch.no_grad(), guard:
        op(x)
    return guard


ALLOWED: dict[str, Op] = {
    "empty": lambda x: torch.empty(3, 5),
    "empty_like": torch.empty_like,
    "zeros": lambda x: torch.zeros(x.shape, dtype=torch.int64),
    "zeros_like": torch.zeros_like,
    "ones": lambda x: x.new_ones(4),
    "full": lambda x: torch.full((2, 2), float("-inf")),
    "full_like": lambda x: torch.full_like(x, 3.0),
    "new_empty": lambda x: x.new_empty((2, 3)),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2)),
    "fill_": lambda x: x.fill_(0.5),
    "zero_": lambda x: x.zero_(),
    "arange": lambda x: torch.arange(10),
    "view": lambda x: x.view(2, 12),
    "reshape of a transposed": lambda x: x.t().reshape(-1),
    "contiguous": lambda x: x.t().contiguous(),
    "channels last": lambda x: x.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x[0],
    "setitem": lambda x: x[0].copy_(x[1]),
    "unsqueeze, expand": lambda x: x.unsqueeze(0).expand(3, 4, 6),
    "flatten": lambda x: x.flatten(1),
    "squeeze": lambda x: x.view(4, 1, 6).squeeze(1),
    "chunk, split, unbind": lambda x: (x.chunk(2), x.split(2), x.unbind(0)),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (6, 1)),
    "clone": lambda x: x.clone(),
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "detach": lambda x: x.detach(),
    "half": lambda x: x.half(),
    "random numbers": lambda x: (torch.rand(3), torch.empty(3).normal_(), torch.randn(2, 2)),
    "to a dtype": lambda x: x.to(torch.bfloat16),
    "shape questions": lambda x: (x.shape, x.stride(), x.numel(), x.data_ptr(), x.is_contiguous(), x.dtype),
}

DENIED: dict[str, Op] = {
    "add": lambda x: x + 1,
    "in-place multiply": lambda x: x.mul_(2),
    "multiply by itself": lambda x: x * x,
    "negate": lambda x: -x,
    "compare": lambda x: x > 0,
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "linear": lambda x: F.linear(x, x),
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(min=0),
    "softmax": lambda x: F.softmax(x, 1),
    "exp": torch.exp,
    "where": lambda x: torch.where(x.bool(), x, x),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(1),
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(1),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "conv": lambda x: F.conv1d(x.view(1, 4, 6), torch.empty(4, 4, 3)),
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64)),
    "tril": torch.tril,
    "item": lambda x: x[0, 0].item(),
    "bool of a tensor": lambda x: bool(x[0, 1]),
    "float of a tensor": lambda x: float(x[0, 1]),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "private operator": lambda x: torch.ops.aten.mm.default(x, x.t()),
    "prims": lambda x: torch.ops.prims.exp(x),
    "nn module": lambda x: torch.nn.GELU()(x),
}


@pytest.mark.parametrize("op", ALLOWED.values(), ids=ALLOWED.keys())
def test_allocation_layout_and_copies_are_allowed(op: Op) -> None:
    assert run(op).violation is None


@pytest.mark.parametrize("op", DENIED.values(), ids=DENIED.keys())
def test_computation_and_host_reads_are_denied(op: Op) -> None:
    with pytest.raises(GuardViolation, match="forward"):
        run(op)


def test_the_sentence_names_the_operator_and_what_to_do() -> None:
    with pytest.raises(GuardViolation, match=r"aten\.mm.*own kernel"):
        run(lambda x: x @ x.t())
    with pytest.raises(GuardViolation, match=r"host.*\.item\(\)"):
        run(lambda x: x[0, 0].item())


def test_a_swallowed_violation_is_remembered() -> None:
    def swallow(x: torch.Tensor) -> None:
        try:
            torch.relu(x)
        except BaseException:
            torch.empty(1)

    violation = run(swallow).violation
    assert violation is not None and "relu" in violation


def test_except_exception_does_not_swallow_it() -> None:
    def swallow(x: torch.Tensor) -> None:
        try:
            torch.relu(x)
        except Exception:
            pytest.fail("swallowed")

    with pytest.raises(GuardViolation):
        run(swallow)


def test_without_deny_everything_runs() -> None:
    """The baseline's reference goes through the same mode, so that both pay its cost."""
    assert run(lambda x: F.softmax(x @ x.t(), 1).sum().item(), deny=False).violation is None


def test_a_submissions_own_operator_is_allowed() -> None:
    with torch.library._scoped_library("kernel_env_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
        assert run(lambda x: torch.ops.kernel_env_test.twice(x)).violation is None


# ---------------------------------------------------------------- placement


class Placed:
    """A placement for one 4x6 float output, and what a forward returned under it."""

    def __init__(self) -> None:
        self.slot = torch.full((4, 6), -1.0)
        self.placement = OutputPlacement([self.slot])

    def call(self, forward: Callable[[], torch.Tensor]) -> bool:
        """Whether the forward's output lies in the slot."""
        self.placement.begin()
        with torch.no_grad(), DispatchGuard(CPU, self.placement, True):
            output = forward()
        self.placement.learn([output])
        return output.data_ptr() == self.slot.data_ptr()


def test_the_allocation_that_is_returned_moves_into_the_slot() -> None:
    placed = Placed()
    calls = [placed.call(lambda: torch.empty(4, 6)) for _ in range(4)]
    assert calls == [False, True, True, True]


def test_only_the_returned_one_of_several_allocations_moves() -> None:
    placed = Placed()

    def forward() -> torch.Tensor:
        scratch = torch.empty(4, 6)
        output = torch.empty(4, 6)
        assert scratch.data_ptr() != output.data_ptr()
        scratch.fill_(7.0)
        return output.fill_(2.0)

    assert [placed.call(forward) for _ in range(3)] == [False, True, True]
    assert bool((placed.slot == 2.0).all())


def test_zeros_are_zeroed_in_the_slot() -> None:
    placed = Placed()
    assert [placed.call(lambda: torch.zeros(4, 6)) for _ in range(2)] == [False, True]
    assert bool((placed.slot == 0.0).all())


def test_a_view_of_the_allocation_still_lies_in_the_slot() -> None:
    placed = Placed()
    assert [placed.call(lambda: torch.empty(24).view(4, 6)) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    "forward",
    [lambda: torch.empty(4, 6, dtype=torch.int32), lambda: torch.empty(4, 5), lambda: torch.empty(0)],
    ids=["another dtype", "another size", "nothing"],
)
def test_other_allocations_never_touch_the_slot(forward: Callable[[], torch.Tensor]) -> None:
    placed = Placed()
    assert [placed.call(forward) for _ in range(3)] == [False, False, False]
    assert bool((placed.slot == -1.0).all())


def test_a_forward_that_changes_its_mind_is_learnt_again() -> None:
    placed = Placed()
    kept = torch.empty(4, 6)
    assert [placed.call(lambda: torch.empty(4, 6)) for _ in range(2)] == [False, True]
    assert not placed.call(lambda: kept)
    assert [placed.call(lambda: torch.empty(4, 6)) for _ in range(2)] == [False, True]
