"""Device memory that can be handed to another process as a file descriptor (CUDA virtual memory management).

Each allocation is its own physical block, so what is exported is exactly the slot and nothing beside it, unlike legacy
CUDA IPC on PyTorch's caching allocator, which exports whole blocks. A descriptor passes between users and PID
namespaces. Touches the CUDA driver library through ctypes; needs torch only to wrap a pointer as a tensor.

Source: CUDA Driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

_HANDLE_TYPE_POSIX_FD = 1
_ALLOCATION_PINNED = 1
_LOCATION_DEVICE = 1
_ACCESS_READ_WRITE = 3
_WAIT_GREATER_OR_EQUAL = 0
CUDA_OUT_OF_MEMORY = 2


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class _AccessDesc(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class CudaDriverError(RuntimeError):
    """A driver call failed; `code` is the CUresult."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with CUDA driver error {code}")
        self.code = code


_driver: ctypes.CDLL | None = None


def _call(name: str, *args: Any) -> None:
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
    code = getattr(_driver, name)(*args)
    if code != 0:
        raise CudaDriverError(name, code)


class _Pointer:
    """The minimal object torch.as_tensor can wrap without a copy."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def write_value(word: torch.Tensor, value: int) -> None:
    """Queue on the current stream: write a 32-bit `value` to the start of `word`."""
    _call("cuStreamWriteValue32_v2", *_word(word, value), 0)


def wait_value(word: torch.Tensor, value: int) -> None:
    """Queue on the current stream: wait until the 32-bit word at the start of `word` is at least `value`."""
    _call("cuStreamWaitValue32_v2", *_word(word, value), _WAIT_GREATER_OR_EQUAL)


def _word(word: torch.Tensor, value: int) -> tuple[Any, ...]:
    stream = torch.cuda.current_stream(word.device).cuda_stream
    return ctypes.c_void_p(stream), ctypes.c_uint64(word.data_ptr()), ctypes.c_uint32(value)


class Mapping:
    """One physical block mapped into this process; `tensor` is its flat uint8 view of `nbytes` elements."""

    def __init__(self, handle: int, size: int, nbytes: int, device: int) -> None:
        self.size = size
        self._address = ctypes.c_uint64()
        _call("cuMemAddressReserve", ctypes.byref(self._address), ctypes.c_size_t(size), ctypes.c_size_t(0), 0, 0)
        _call("cuMemMap", self._address, ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(handle), 0)
        # The mapping keeps the physical block alive; the handle itself is no longer needed.
        _call("cuMemRelease", ctypes.c_uint64(handle))
        access = _AccessDesc(_Location(_LOCATION_DEVICE, device), _ACCESS_READ_WRITE)
        _call("cuMemSetAccess", self._address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        pointer = _Pointer(self._address.value, nbytes, self)
        self.tensor: torch.Tensor | None = torch.as_tensor(pointer, device=f"cuda:{device}")

    def close(self) -> None:
        """Unmap. The caller has synchronised and holds no view of `tensor`."""
        if self.tensor is None:
            return
        self.tensor = None
        _call("cuMemUnmap", self._address, ctypes.c_size_t(self.size))
        _call("cuMemAddressFree", self._address, ctypes.c_size_t(self.size))


def _round_up(nbytes: int, device: int) -> tuple[int, _AllocationProp]:
    prop = _AllocationProp(_ALLOCATION_PINNED, _HANDLE_TYPE_POSIX_FD, _Location(_LOCATION_DEVICE, device))
    granularity = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(prop), 0)
    unit = granularity.value
    return max(1, -(-nbytes // unit)) * unit, prop


def allocate(nbytes: int, device: int = 0) -> tuple[Mapping, int]:
    """Allocate a block and return its mapping and a file descriptor that stands for it (the caller closes it).

    Raises:
        CudaDriverError: code 2 when the device is out of memory.
    """
    torch.cuda.current_stream(device)  # makes the primary context current in this thread
    size, prop = _round_up(nbytes, device)
    handle = ctypes.c_uint64()
    _call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))
    fd = ctypes.c_int()
    _call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _HANDLE_TYPE_POSIX_FD, ctypes.c_uint64(0))
    os.set_inheritable(fd.value, False)
    return Mapping(handle.value, size, nbytes, device), fd.value


def import_block(fd: int, nbytes: int, device: int = 0) -> Mapping:
    """Map a block that another process exported as `fd`."""
    torch.cuda.current_stream(device)
    size, _ = _round_up(nbytes, device)
    handle = ctypes.c_uint64()
    _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _HANDLE_TYPE_POSIX_FD)
    return Mapping(handle.value, size, nbytes, device)
