"""The two machines a judge can run on: a CUDA device, or the CPU (Triton's interpreter, small tasks).

On CUDA a call is started by a gate: the candidate is told to begin, queues a wait on a word in shared device memory
and its launches behind it, while the judge's stream still flushes and writes the inputs and then opens the gate. So
the events around the call see the device's time alone, as triton.testing.do_bench does by queueing its cache clear
first. Measured on an H200, Triton ReLU on 6 GiB: 3.31 ms (p10 to p90 0.075) without the gate, 3.164 (0.003) with it,
3.163 by do_bench. A second word, written by the candidate's stream at its end, lets the judge's stream go on: so the
judge's clock is the device's too, and holds no message and no wake-up of a process.

Everything the judge and the candidate do differently on the two lives here: shared slots, synchronisation, the
stopwatch, the judge's clock and the L2 flush.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import platform
import time
from typing import Any, Protocol

import torch

from server.worker import vmm
from server.worker.nvml import Monitor, Reading
from server.worker.protocol import SIGNAL_OFFSET, DeviceInfo

try:  # torch works without triton on the CPU; the version is only reported
    import triton

    _TRITON_VERSION: str | None = triton.__version__
except ImportError:
    _TRITON_VERSION = None


# Each flush writes twice the L2 cache, 126 MB on an H200 in this time.
FLUSH_MS = 0.031

# 6 ms on an H200: longer than the time slices that the device gives to another process.
_QUIET_FLUSHES = 200
_QUIET_TRIES = 3
_QUIET_FACTOR = 1.1


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

    def lead(self, time_ms: float) -> None:
        pass

    def open_gate(self, gate: torch.Tensor, value: int) -> None:
        pass

    def wait_gate(self, gate: torch.Tensor, value: int) -> None:
        pass

    def signal(self, gate: torch.Tensor, value: int) -> None:
        pass

    def wait_signal(self, gate: torch.Tensor, value: int) -> None:
        pass

    def release(self, gate: torch.Tensor, value: int) -> None:
        pass

    def mark(self) -> Any:
        return time.perf_counter()

    def between(self, first: Any, last: Any, timeout_s: float) -> float | None:
        return (last - first) * 1e3

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def empty_cache(self) -> None:
        pass

    def is_quiet(self) -> bool:
        return True

    def memory_bytes(self) -> int:
        """The memory that submissions and judges share; 0 where nobody counts it."""
        return 0

    def free_bytes(self) -> int:
        """What is free of it, and what this process could give back."""
        return 0

    def peak_bytes(self) -> int:
        """The most that tensors of this process took since `reset_peak`."""
        return 0

    def reset_peak(self) -> None:
        pass

    def identity(self) -> str:
        """What tells this device from others of its name."""
        return platform.node()

    def health(self) -> Reading | None:
        """The device's clock and what has slowed it down; None where nobody knows."""
        return None

    def start(self) -> Any:
        """Start the stopwatch; give what it returns to `finish`, and what that returns to `elapsed_ms`."""
        return time.perf_counter()

    def finish(self, started: Any) -> Any:
        return (time.perf_counter() - started) * 1e3

    def elapsed_ms(self, finished: Any) -> float:
        return finished

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
        self._quiet_ms = math.inf
        self._side: torch.cuda.Stream | None = None
        self._monitor: Monitor | None = None

    def allocate(self, nbytes: int) -> tuple[Slot, int]:
        """A slot and a descriptor for it, which the caller closes.

        Raises:
            CudaDriverError: code 2 when memory is short.
        """
        return vmm.allocate(nbytes)

    def import_slot(self, fd: int, nbytes: int) -> Slot:
        return vmm.import_block(fd, nbytes)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def flush_l2(self) -> None:
        """Overwrite twice the L2 cache."""
        if self._flush is None:
            size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
            self._flush = torch.empty(max(size, 64 << 20), dtype=torch.uint8, device=self.torch_device)
        self._flush.zero_()

    def lead(self, time_ms: float) -> None:
        """Keep the stream busy for so long: the time a candidate has to queue its launches."""
        for _ in range(math.ceil(time_ms / FLUSH_MS)):
            self.flush_l2()

    def open_gate(self, gate: torch.Tensor, value: int) -> None:
        """Write `value` to the gate's word once the stream has come this far."""
        vmm.write_value(gate, value)

    def wait_gate(self, gate: torch.Tensor, value: int) -> None:
        """Make the stream wait until the gate's word is at least `value`; the host goes on."""
        vmm.wait_value(gate, value)

    def signal(self, gate: torch.Tensor, value: int) -> None:
        """The candidate's stream has come this far: for `wait_signal`."""
        vmm.write_value(gate[SIGNAL_OFFSET:], value)

    def wait_signal(self, gate: torch.Tensor, value: int) -> None:
        """Make the stream wait for the candidate's signal, or for `release`."""
        vmm.wait_value(gate[SIGNAL_OFFSET:], value)

    def release(self, gate: torch.Tensor, value: int) -> None:
        """Signal in the candidate's place, which died or never did."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.torch_device)
        with torch.cuda.stream(self._side):
            self.signal(gate, value)

    def mark(self) -> Any:
        """A point on the stream, for `between`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, last: Any, timeout_s: float) -> float | None:
        """The ms between two marks, once the stream has passed both; None when it does not in time."""
        end = time.monotonic() + timeout_s
        while not last.query():
            if time.monotonic() > end:
                return None
        return first.elapsed_time(last)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy flat bytes by a kernel: a copy engine would work beside another process's kernels."""
        if target.numel() % 8 == 0:
            target, source = target.view(torch.int64), source.view(torch.int64)
        torch.bitwise_or(source, 0, out=target)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def is_quiet(self) -> bool:
        """Whether no other process uses the device: writing a fixed amount takes as long as it ever did.

        The first call takes what it finds as quiet.
        """
        times_ms = []
        for _ in range(_QUIET_TRIES):
            started = self.start()
            for _ in range(_QUIET_FLUSHES):
                self.flush_l2()
            times_ms.append(self.elapsed_ms(self.finish(started)))
            if times_ms[-1] <= self._quiet_ms * _QUIET_FACTOR and self._quiet_ms < math.inf:
                break
        self._quiet_ms = min(self._quiet_ms, *times_ms)
        return times_ms[-1] <= self._quiet_ms * _QUIET_FACTOR

    def memory_bytes(self) -> int:
        return torch.cuda.get_device_properties(0).total_memory

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def identity(self) -> str:
        return str(torch.cuda.get_device_properties(0).uuid)

    def health(self) -> Reading | None:
        if self._monitor is None:
            self._monitor = Monitor(self.identity())
        return self._monitor.read()

    def start(self) -> Any:
        """Record an event; give what it returns to `finish`, and what that returns to `elapsed_ms`, which waits."""
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        return begin, end

    def finish(self, started: Any) -> Any:
        started[1].record()
        return started

    def elapsed_ms(self, finished: Any) -> float:
        torch.cuda.synchronize()
        return finished[0].elapsed_time(finished[1])

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
