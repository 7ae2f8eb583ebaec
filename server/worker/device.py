"""The two machines a judge can run on: a CUDA device, or the CPU (Triton's interpreter, small tasks).

On CUDA a call is started by a gate: the candidate is told to begin, queues a wait on a word in shared device memory
and its launches behind it, while the judge's stream still flushes and writes the inputs and then opens the gate. So
the events around the call see the device's time alone, as triton.testing.do_bench does by queueing its cache clear
first. Measured on an H200, Triton ReLU on 6 GiB: 3.31 ms (p10 to p90 0.075) without the gate, 3.164 (0.003) with it,
3.163 by do_bench.

Everything the judge and the candidate do differently on the two lives here: shared slots, synchronisation, the
stopwatch and the L2 flush.
"""

from __future__ import annotations

import contextlib
import fcntl
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


# Each writes twice the L2 cache, 126 MB on an H200 in 31 us.
LEAD_FLUSHES = 7


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
    gated = False
    torch_device = torch.device("cpu")

    def allocate(self, nbytes: int) -> tuple[Slot, int]:
        """A slot and a descriptor for it, which the caller closes."""
        fd = os.memfd_create("kernel_env_slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(1, nbytes))
        # The candidate could keep the descriptor; were it to truncate the file, the judge would die of SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return _HostSlot(fd, nbytes), fd

    def import_slot(self, fd: int, nbytes: int) -> Slot:
        return _HostSlot(fd, nbytes)

    def synchronize(self) -> None:
        pass

    def flush_l2(self) -> None:
        pass

    def lead(self) -> None:
        pass

    def open_gate(self, gate: torch.Tensor, value: int) -> None:
        pass

    def wait_gate(self, gate: torch.Tensor, value: int) -> None:
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
    gated = True

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

    def lead(self) -> None:
        """Keep the stream busy for a quarter of a millisecond or so: the time a candidate has to queue its launches."""
        for _ in range(LEAD_FLUSHES):
            self.flush_l2()

    def open_gate(self, gate: torch.Tensor, value: int) -> None:
        """Write `value` to the shared word once the stream has come this far."""
        from server.worker import vmm

        vmm.write_value(gate, value)

    def wait_gate(self, gate: torch.Tensor, value: int) -> None:
        """Make the stream wait until the shared word is at least `value`; the host goes on."""
        from server.worker import vmm

        vmm.wait_value(gate, value)

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
