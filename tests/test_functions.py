"""Functions of PyTorch's libraries that compute without the dispatcher: which they are, and that they are gone."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import weakref

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("needs Linux", allow_module_level=True)

import torch

from server.worker import functions
from server.worker.libraries import mappings
from server.worker.operators import Withdrawal

OPERATORS = functions.withdrawn(
    ["aten::_softmax", "aten::cumsum.out", "aten::mm", "aten::copy", "aten::cat", "aten::resize", "aten::index_fill_"],
    ["copy_", "cat", "resize_", "fill_"],
)


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("aoti_torch_cpu_cumsum", "cpu", True),
        ("aoti_torch_cuda__softmax", "cuda", True),
        ("aoti_torch_cpu_cumsum", "cuda", False),
        ("aoti_torch_cuda_cat", "cuda", False),
        ("aoti_torch_cpu_fill__Scalar", "cpu", False),
        ("aoti_torch_empty_strided", "cpu", False),
        ("aoti_torch_cuda_index_fill_int_Scalar", "cuda", True),
        ("aoti_torch_cuda_guard_set_index", "cuda", False),
        ("_ZN2at6native12resize_cuda_ERKNS_6TensorE", "cuda", False),
        ("_ZN2at3cpu12_softmax_outERNS_6TensorERKS1_lb", "cpu", True),
        ("_ZN2at3cpu12_softmax_outERNS_6TensorERKS1_lb", "cuda", False),
        ("_ZN2at4cuda8_softmaxERKNS_6TensorElb", "cuda", True),
        ("_ZN2at4cuda20getCurrentCUDAStreamEa", "cuda", False),
        ("_ZN2at6native27structured_softmax_cuda_out4implERKNS_6TensorElbS4_", "cuda", True),
        ("_ZN2at6native23structured_cat_out_cuda4implERKNS_6TensorE", "cuda", False),
        ("_ZN2at6native23direct_copy_kernel_cudaERNS_18TensorIteratorBaseE", "cuda", False),
        ("_ZN5torch3jit10tensorexpr16TensorExprKernel7compileEv", "cpu", True),
        ("_ZN5torch3jit5parseEv", "cpu", False),
    ],
)
def test_which_functions_are_taken_away(name: str, device: str, expected: bool) -> None:
    assert functions.computes(name.encode(), device, OPERATORS) is expected


def test_they_are_gone_in_the_child_alone_and_what_is_allowed_still_works() -> None:
    ranges = functions.loaded("cpu", frozenset({"cumsum"}))
    path = next(found.path for found in mappings() if found.path.endswith("libtorch_cpu.so"))
    function = ctypes.CDLL(path).aoti_torch_cpu_cumsum
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    before = ctypes.string_at(address, 16)
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        try:
            functions.remove(ranges)
            x = torch.cat([torch.zeros(3), torch.arange(3.0)]).half().float().clone()
            if x.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]:
                function(None, 0, None, None)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTRAP
    assert ctypes.string_at(address, 16) == before


def registrations() -> set[int]:
    """The objects whose end would undo a registration: torch has some too."""
    # Not isinstance: it raises for a proxy of what is gone.
    found = [one.m for one in gc.get_objects() if type(one) is torch.library.Library]
    alive = [key.peek() for key in weakref.finalize._registry if key.alive]  # type: ignore[attr-defined]
    values = [value for details in alive for value in details[2]]
    return {id(value) for value in (*found, *values) if type(value).__name__ == "_DispatchModule"}


def test_no_object_is_left_that_gives_the_operators_back() -> None:
    pid = os.fork()
    if pid == 0:
        left = 1
        try:
            before = registrations()
            withdrawal = Withdrawal(torch.device("cpu"))
            taken = len(withdrawal)
            withdrawal.complete()
            withdrawal.undo()
            substitute = str(torch.library.get_kernel(torch.ops.aten._softmax.default, "CPU"))
            left = 0 if taken > 1000 and registrations() <= before and "RegisterCPU" not in substitute else 2
        finally:
            os._exit(left)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
