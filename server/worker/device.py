"""The two machines a judge can run on: a CUDA device, or the CPU (Triton's interpreter, small tasks).

Everything the judge and the candidate do differently on the two lives here: shared slots, synchronisation, the
stopwatch and the L2 flush.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import time
from typing import Any, Protocol

import torch

from server.worker.protocol import DeviceInfo

try:  # torch works without triton on the CPU; the version is only reported
    import triton

    _TRITON_VERSION: str | None = triton.__version__
except ImportError:
    _TRITON_VERSION = None


class Slot(Protocol):
    """Memory shared by judge and candidate: `tensor` is a flat uint8 view of exactly the bytes asked for."""

    @property
    def tensor(self) -> torch.Tensor | None: ...

    def close(self) -> None: ...


class _HostSlot:
    def __init__(self, fd: int, nbytes: int) -> None:
        self._map = mmap.mmap(fd, max(1, nbytes))
        self.tensor: torch.Tensor | None = torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

    def close(self) -> None:
        self.tensor = None
        # A view that outlives the slot keeps the mapping; the memory goes when the view does.
        with contextlib.suppress(BufferError):
            self._map.close()


class CpuDevice:
    """Shared memory through memfd and the host's clock."""

    kind = "cpu"
    torch_device = torch.device("cpu")

    def allocate(self, nbytes: int) -> tuple[Slot, int]:
        """A slot and a descriptor for it, which the caller closes."""
        fd = os.memfd_create("kernel_env_slot", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(1, nbytes))
        return _HostSlot(fd, nbytes), fd

    def import_slot(self, fd: int, nbytes: int) -> Slot:
        return _HostSlot(fd, nbytes)

    def synchronize(self) -> None:
        pass

    def flush_l2(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def start(self) -> Any:
        """Start the stopwatch; give what it returns to `stop`, which answers in ms."""
        return time.perf_counter()

    def stop(self, started: Any) -> float:
        return (time.perf_counter() - started) * 1e3

    def info(self, sandbox: str) -> DeviceInfo:
        name = platform.processor() or platform.machine()
        with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as lines:
            name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        return DeviceInfo(
            kind="cpu", name=name, torch=str(torch.__version__), triton=_TRITON_VERSION, sandbox=sandbox, driver=None
        )


class CudaDevice:
    """Device 0 of what CUDA_VISIBLE_DEVICES shows."""

    kind = "cuda"

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda:0")
        self._flush: torch.Tensor | None = None

    def allocate(self, nbytes: int) -> tuple[Slot, int]:
        """A slot and a descriptor for it, which the caller closes.

        Raises:
            CudaDriverError: code 2 when memory is short.
        """
        from server.worker import vmm

        return vmm.allocate(nbytes)

    def import_slot(self, fd: int, nbytes: int) -> Slot:
        from server.worker import vmm

        return vmm.import_block(fd, nbytes)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def flush_l2(self) -> None:
        """Overwrite twice the L2 cache."""
        if self._flush is None:
            size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
            self._flush = torch.empty(max(size, 64 << 20), dtype=torch.uint8, device=self.torch_device)
        self._flush.zero_()

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def start(self) -> Any:
        """Record an event; give what it returns to `stop`, which waits for the device and answers in ms."""
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        return begin, end

    def stop(self, started: Any) -> float:
        begin, end = started
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def info(self, sandbox: str) -> DeviceInfo:
        properties = torch.cuda.get_device_properties(0)
        return DeviceInfo(
            kind="cuda",
            name=properties.name,
            memory_bytes=properties.total_memory,
            driver=_driver_version(),
            torch=str(torch.__version__),
            triton=_TRITON_VERSION,
            sandbox=sandbox,
        )


Device = CpuDevice | CudaDevice


def create_device(kind: str) -> Device:
    return CudaDevice() if kind == "cuda" else CpuDevice()


def _driver_version() -> str | None:
    with contextlib.suppress(OSError, IndexError), open("/proc/driver/nvidia/version") as lines:
        words = lines.readline().split()
        return next(word for word in words if word.count(".") >= 1 and word[0].isdigit())
    return None
