"""Tells by an error, and by what led to it, whether this host was short of something: then nobody's code is to blame.

Runs in the judge. Touches nothing.
"""

from __future__ import annotations

import errno

import torch

from server.worker.ended import causes
from server.worker.vmm import CUDA_OUT_OF_MEMORY, CudaDriverError

_OUT_OF_MEMORY = "judge_out_of_memory"
# cuBLAS's and cuDNN's own allocations, which PyTorch reports as any other of their errors.
_LIBRARIES_OUT_OF_MEMORY = ("_STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED")
_CODES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO), "disk"),
    errno.ENOMEM: _OUT_OF_MEMORY,
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.EAGAIN), "judge_error"),
}


def is_device_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory was short, as seen from this process."""
    if isinstance(error, CudaDriverError):
        return error.code == CUDA_OUT_OF_MEMORY
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _LIBRARIES_OUT_OF_MEMORY)


def shortage(error: BaseException) -> str | None:
    """The kernel_env.models.InfraCode of what was short or broken; None where the error says nothing of the host."""
    return next((code for link in causes(error) if (code := _of(link)) is not None), None)


def _of(error: BaseException) -> str | None:
    if isinstance(error, MemoryError) or is_device_out_of_memory(error) or "can't allocate memory" in str(error):
        return _OUT_OF_MEMORY
    if isinstance(error, (torch.AcceleratorError, CudaDriverError)):
        return "gpu_lost"
    return _CODES.get(error.errno or 0) if isinstance(error, OSError) else None
