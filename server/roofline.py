"""The hardware's floor under a task's run time: GPU peaks, and pure arithmetic on a task's counts.

Touches nothing: the counts come from the judge (`TaskFacts`), the device's name and memory from `DeviceInfo`.

``t_min = max(FLOPs / peak, bytes / bandwidth)`` with FLOPs counted on the reference, compulsory bytes (inputs,
parameters and outputs, each moved once), and dense datasheet peaks. Tasks in float32 use the TF32 tensor-core peak:
``tl.dot`` uses TF32, and TF32 passes the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.worker.protocol import TaskFacts

Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Gpu:
    """Dense datasheet peaks of one GPU model.

    Attributes:
        names: what nvidia-smi and torch report, without the leading "NVIDIA ".
        memory_gib: memory of a whole card, GiB.
        bytes_per_s: peak memory bandwidth.
        float32: peak FLOP/s for float32 tasks, on TF32 tensor cores.
        float16: peak FLOP/s for float16 and bfloat16, which are equal on every GPU listed here.
        float64: peak FLOP/s for float64 on tensor cores; None where the datasheet gives none.
    """

    names: tuple[str, ...]
    memory_gib: int
    bytes_per_s: float
    float32: float
    float16: float
    float64: float | None = None

    def peak_flops(self, dtype: str) -> float | None:
        """Peak FLOP/s for a torch dtype name such as "float32"; None where no peak is known."""
        peaks = {"float32": self.float32, "float16": self.float16, "bfloat16": self.float16, "float64": self.float64}
        return peaks.get(dtype)


@dataclass(frozen=True)
class Roofline:
    """The floor of one task on one GPU.

    Attributes:
        t_min_ms: the larger of the compute and the memory term.
        bound: which of the two it is.
        arithmetic_intensity: FLOP per compulsory byte; None where the FLOPs could not be counted.
        t_memory_ms: the memory term alone. It bounds every correct kernel, also one that does fewer FLOPs than the
            reference, so it is the floor to reject by where the reference does more work than it must.
    """

    t_min_ms: float
    bound: Bound
    arithmetic_intensity: float | None
    t_memory_ms: float


# Tensor-core figures are dense. Where a datasheet prints only the figure with 2:4 sparsity, it is halved.
GPUS: tuple[Gpu, ...] = (
    # H100 datasheet and "NVIDIA H100 Tensor Core GPU Architecture" whitepaper, table "H100 SXM5": TF32 494.7 TFLOPS,
    # FP16/BF16 989.4, FP64 tensor core 66.9, 3.35 TB/s.
    Gpu(("H100 80GB HBM3",), 80, 3.35e12, 494.7e12, 989.4e12, 66.9e12),
    # Same whitepaper, column "H100 PCIe": TF32 378, FP16/BF16 756, FP64 tensor core 51.2; H100 PCIe datasheet: 2 TB/s.
    Gpu(("H100 PCIe",), 80, 2.0e12, 378e12, 756e12, 51.2e12),
    # H100 datasheet, column "H100 NVL", one GPU: TF32 835 and FP16/BF16 1,671 sparse, FP64 tensor core 60, 3.9 TB/s.
    Gpu(("H100 NVL",), 94, 3.9e12, 417.5e12, 835.5e12, 60e12),
    # H200 datasheet, column "H200 SXM": TF32 989 and FP16/BF16 1,979 sparse, the H100 SXM's chip (whitepaper figures
    # as above), FP64 tensor core 67, 4.8 TB/s.
    Gpu(("H200",), 141, 4.8e12, 494.7e12, 989.4e12, 66.9e12),
    # H200 datasheet, column "H200 NVL": TF32 835 and FP16/BF16 1,671 sparse, FP64 tensor core 60, 4.8 TB/s.
    Gpu(("H200 NVL",), 141, 4.8e12, 417.5e12, 835.5e12, 60e12),
    # A100 datasheet: TF32 156, FP16/BF16 312, FP64 tensor core 19.5 for every A100; bandwidth by card:
    # 80GB SXM 2,039 GB/s, 40GB SXM and PCIe 1,555 GB/s, 80GB PCIe 1,935 GB/s.
    Gpu(("A100-SXM4-80GB",), 80, 2.039e12, 156e12, 312e12, 19.5e12),
    Gpu(("A100-SXM4-40GB",), 40, 1.555e12, 156e12, 312e12, 19.5e12),
    Gpu(("A100-PCIE-40GB",), 40, 1.555e12, 156e12, 312e12, 19.5e12),
    Gpu(("A100 80GB PCIe", "A100-PCIE-80GB"), 80, 1.935e12, 156e12, 312e12, 19.5e12),
    # L40S datasheet: TF32 183 dense, FP16/BF16 362.05 dense, 864 GB/s.
    Gpu(("L40S",), 48, 0.864e12, 183e12, 362.05e12),
    # L4 datasheet: TF32 120 sparse, FP16/BF16 242 sparse, 300 GB/s.
    Gpu(("L4",), 24, 0.3e12, 60e12, 121e12),
)

# Drivers report a little less than the nominal memory (ECC, reserved pages): 0.92 of it on an L4, 0.99 on an H200.
_MIN_MEMORY_SHARE = 0.85
_MAX_MEMORY_SHARE = 1.05

_BY_NAME = {name.casefold(): gpu for gpu in GPUS for name in gpu.names}


def find_gpu(name: str, memory_bytes: int) -> Gpu | None:
    """The table's entry for a device, or None for any other device.

    Names must match whole: "L40" is not an L40S, and a MIG slice ("... MIG 1g.10gb") is not its card. The memory size
    guards against a partition that reports the card's own name.

    Args:
        name: as reported by nvidia-smi or torch, with or without the leading "NVIDIA ".
        memory_bytes: total memory of the device; 0 where it is not known.
    """
    gpu = _BY_NAME.get(name.strip().casefold().removeprefix("nvidia "))
    if gpu is None or memory_bytes == 0:
        return gpu
    share = memory_bytes / (gpu.memory_gib * 2**30)
    return gpu if _MIN_MEMORY_SHARE <= share <= _MAX_MEMORY_SHARE else None


def analyse(facts: TaskFacts, gpu: Gpu) -> Roofline:
    """The roofline of a task on a GPU: ``t_min = max(FLOPs / peak, bytes / bandwidth)``.

    The memory term stands alone where the FLOPs could not all be counted (``flops_complete`` is False) and where the
    GPU has no known peak for the task's dtype.

    Raises:
        ValueError: the task moves no bytes, so that it has no floor.
    """
    moved_bytes = facts.input_bytes + facts.parameter_bytes + facts.output_bytes
    if moved_bytes <= 0:
        raise ValueError(f"a task must move at least one byte, got {moved_bytes}")
    t_memory_ms = moved_bytes / gpu.bytes_per_s * 1e3
    peak = gpu.peak_flops(facts.dtype)
    t_compute_ms = facts.flops / peak * 1e3 if peak is not None and facts.flops_complete else 0.0
    return Roofline(
        t_min_ms=max(t_compute_ms, t_memory_ms),
        bound="compute" if t_compute_ms > t_memory_ms else "memory",
        arithmetic_intensity=facts.flops / moved_bytes if facts.flops_complete else None,
        t_memory_ms=t_memory_ms,
    )


def roofline_fields(
    facts: TaskFacts | None, device_name: str, memory_bytes: int, t_ref_ms: float | None, t_new_ms: float | None
) -> dict[str, str | float | None]:
    """The observation's five roofline fields; all None for an unknown GPU or a task without counts.

    A fraction is also None where its time is. It can exceed 1 slightly: a kernel may beat the floor by what the
    rejection threshold leaves.
    """
    fields: dict[str, str | float | None] = dict.fromkeys(
        ("bound", "arithmetic_intensity", "t_min_ms", "roofline_frac", "ref_roofline_frac")
    )
    gpu = find_gpu(device_name, memory_bytes)
    if facts is None or gpu is None:
        return fields
    roofline = analyse(facts, gpu)
    fields["bound"] = roofline.bound
    fields["arithmetic_intensity"] = roofline.arithmetic_intensity
    fields["t_min_ms"] = roofline.t_min_ms
    fields["roofline_frac"] = roofline.t_min_ms / t_new_ms if t_new_ms else None
    fields["ref_roofline_frac"] = roofline.t_min_ms / t_ref_ms if t_ref_ms else None
    return fields


def is_impossible(t_new_ms: float, t_min_ms: float, threshold: float) -> bool:
    """True where a measured time is below ``threshold`` times the floor, so that it cannot be the task's work.

    A threshold of 0 turns the check off. The slack below 1 covers boost clocks above the datasheet's and outputs that
    are still in the L2 cache when the timed window ends.
    """
    return t_new_ms < threshold * t_min_ms
