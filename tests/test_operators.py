"""PyTorch's computations are not in a candidate's process: what is left, what is said, what `__init__` gets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from server.worker.guard import ALLOWED, DispatchGuard, GuardViolation
from server.worker.operators import Withdrawal, on_cpu

CPU = torch.device("cpu")
aten = torch.ops.aten


@pytest.fixture(scope="module")
def withdrawal() -> Iterator[Withdrawal]:
    withdrawal = Withdrawal(CPU)
    try:
        yield withdrawal
    finally:
        withdrawal.undo()


def in_thread(work: Any) -> BaseException | None:
    """What `work` raises in a thread that no dispatch mode watches."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x @ x,
        lambda x: torch.softmax(x, 0),
        lambda x: x.relu_(),
        lambda x: torch.add(x, x, out=x),
        lambda x: aten._foreach_add([x], 1.0),
        lambda x: torch.linalg.inv(x),
        lambda x: torch.nn.functional.conv1d(x[None], x[None]),
        lambda x: x.sum(),
        lambda x: x.to_sparse(),
        lambda x: torch.cumsum(x, 0),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ],
)
def test_a_computation_during_a_forward_is_rejected_in_any_thread(withdrawal: Withdrawal, work: Any) -> None:
    x = torch.eye(4)
    guard = DispatchGuard(CPU, None, deny=True)
    with guard:
        error = in_thread(lambda: work(x))
    assert isinstance(error, GuardViolation)
    assert guard.violation == str(error)
    work(x)  # no forward runs any more


def test_allocating_moving_and_casting_is_not(withdrawal: Withdrawal) -> None:
    def work() -> None:
        x = torch.zeros(4, 4).fill_(1.0).t().contiguous()
        x = torch.cat([x, torch.empty_like(x).copy_(x)]).half().reshape(2, 16)[:, :3].clone()
        torch.nn.functional.pad(x, (1, 1))
        x = [torch.arange(3), torch.randn(3), torch.randperm(3), torch.full((2,), 7)]

    with DispatchGuard(CPU, None, deny=True):
        assert in_thread(work) is None


def test_every_operator_that_a_forward_may_use_is_left(withdrawal: Withdrawal) -> None:
    taken = {name.split("/")[1] for library in withdrawal._libraries.values() for name in library._op_impls}
    assert not {name.partition(".")[0] for name in taken} & ALLOWED
    assert {"mm", "_softmax", "add.Tensor", "sum.dim_IntList"} <= taken


def test_the_reference_gets_them_back(withdrawal: Withdrawal) -> None:
    pid = os.fork()
    if pid == 0:
        error: object = "nothing"
        try:
            withdrawal.undo()
            with DispatchGuard(CPU, None, deny=True):
                error = in_thread(lambda: torch.softmax(torch.ones(3), 0))
        finally:
            os._exit(error is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_guard_that_denies_nothing_forbids_nothing(withdrawal: Withdrawal) -> None:
    with DispatchGuard(CPU, None, deny=False):
        assert in_thread(lambda: torch.softmax(torch.ones(3), 0)) is None


# ---------------------------------------------------------------- what __init__ gets instead on a GPU


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(4.0), torch.ones(4)


def test_the_result_is_the_operators() -> None:
    x, y = tensors()
    assert torch.equal(on_cpu(aten.add.Tensor, CPU, (x, 2), {}), x + 2)
    assert torch.equal(on_cpu(aten.add.Tensor, CPU, (x, y), {"alpha": 3}), x + 3 * y)
    values, order = on_cpu(aten.sort.default, CPU, (x,), {"descending": True})
    assert (values.tolist(), order.tolist()) == ([3.0, 2.0, 1.0, 0.0], [3, 2, 1, 0])


def test_what_it_writes_to_is_written_to() -> None:
    x, y = tensors()
    assert on_cpu(aten.mul_.Tensor, CPU, (x, 2), {}) is x
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert on_cpu(aten.add.out, CPU, (x, y), {"out": y}) is y
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0]
    on_cpu(aten._foreach_mul_.Scalar, CPU, ([x, y], 2.0), {})
    assert (x.tolist(), y.tolist()) == ([0.0, 4.0, 8.0, 12.0], [2.0, 6.0, 10.0, 14.0])


def test_an_output_of_another_size_is_resized() -> None:
    x, _ = tensors()
    out = torch.empty(0)
    on_cpu(aten.add.out, CPU, (x, x), {"out": out})
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_one_tensor_in_two_places_is_one() -> None:
    x, _ = tensors()
    on_cpu(aten.add_.Tensor, CPU, (x, x), {})
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0]
