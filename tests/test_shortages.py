"""Whose fault an error in the judge is: the host's, when something was short, or the task's."""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from server.worker.device import CpuDevice  # noqa: E402
from server.worker.faults import is_device_out_of_memory, shortage  # noqa: E402
from server.worker.judge import Judge  # noqa: E402
from server.worker.lease import Cancelled, InfrastructureFault, ServerGone  # noqa: E402
from server.worker.vmm import CUDA_OUT_OF_MEMORY, CudaDriverError  # noqa: E402
from tests.cpu_pool import request_for  # noqa: E402
from tests.cpu_submissions import GOOD  # noqa: E402


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "judge_out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "judge_out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "judge_out_of_memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "judge_out_of_memory"),
        (CudaDriverError("cuMemCreate", CUDA_OUT_OF_MEMORY), "judge_out_of_memory"),
        (OSError(errno.ENOMEM, "fork"), "judge_out_of_memory"),
        (CudaDriverError("cuMemCreate", 700), "gpu_lost"),
        (torch.AcceleratorError("illegal access"), "gpu_lost"),
        (OSError(errno.ENOSPC, "write"), "disk"),
        (OSError(errno.EDQUOT, "write"), "disk"),
        (OSError(errno.EMFILE, "open"), "judge_error"),
        (OSError(errno.ENOENT, "a file that the task wants"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_what_was_short_shows_also_through_what_was_made_of_the_error(error: Exception, code: str | None) -> None:
    assert shortage(error) == code
    outer = RuntimeError("the reference cannot be run")
    outer.__cause__ = error
    assert shortage(outer) == code


def test_only_the_devices_memory_can_be_short_for_other_judges() -> None:
    assert is_device_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_device_out_of_memory(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"))
    assert not is_device_out_of_memory(MemoryError())


class _Ended:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def listen(self) -> float:
        raise self._error


@pytest.mark.parametrize("error", [Cancelled(), ServerGone(), InfrastructureFault("step_deadline", "for the test")])
def test_what_the_server_says_while_a_task_is_prepared_is_heard_and_is_not_the_tasks_fault(error: Exception) -> None:
    judge: Any = object.__new__(Judge)
    judge._tasks, judge._device, judge._lease = OrderedDict(), CpuDevice(), _Ended(error)
    with pytest.raises(type(error)):
        judge._task(request_for(GOOD), "key")
    assert not judge._tasks
