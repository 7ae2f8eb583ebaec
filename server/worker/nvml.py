"""A GPU's clock and whether it was slowed down, from NVML. In the judge. Never imports torch.

Source: NVML API reference, nvmlDeviceGetClockInfo and nvmlDeviceGetViolationStatus.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """The SM clock in MHz, and for each reason the ns since the driver started in which it held clocks down."""

    sm_clock_mhz: int
    slowed_ns: dict[str, int]

    def since(self, before: Reading) -> list[str]:
        """The reasons that held clocks down between `before` and this."""
        return [name for name, total_ns in self.slowed_ns.items() if total_ns > before.slowed_ns.get(name, total_ns)]


class Monitor:
    """Reads one device, found by its UUID. Says nothing where NVML, or a counter, is not there."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        try:
            pynvml = importlib.import_module("pynvml")
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        except Exception:  # not installed, no library, a container without it
            return
        self._nvml = pynvml
        self._policies = {"power": pynvml.NVML_PERF_POLICY_POWER, "thermal": pynvml.NVML_PERF_POLICY_THERMAL}

    def read(self) -> Reading | None:
        """Now, or None."""
        if self._nvml is None:
            return None
        slowed_ns = {}
        try:
            clock = self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM)
        except self._nvml.NVMLError:
            return None
        for name, policy in self._policies.items():
            with contextlib.suppress(self._nvml.NVMLError):
                slowed_ns[name] = int(self._nvml.nvmlDeviceGetViolationStatus(self._device, policy).violationTime)
        return Reading(int(clock), slowed_ns)
