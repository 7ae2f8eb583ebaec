"""Device names, the t_min formula against measured tasks' counts, and the impossible-time rule."""

from __future__ import annotations

import pytest

from server.roofline import GPUS, analyse, find_gpu, is_impossible, roofline_fields
from server.worker.protocol import TaskFacts

GIB = 2**30
H200 = find_gpu("NVIDIA H200", 0)
assert H200 is not None


def facts(flops: int, input_bytes: int, parameter_bytes: int, output_bytes: int, dtype: str = "float32") -> TaskFacts:
    return TaskFacts(flops, input_bytes, parameter_bytes, output_bytes, dtype)


@pytest.mark.parametrize(
    ("name", "memory_bytes", "bandwidth", "tf32"),
    [
        ("NVIDIA H100 80GB HBM3", 85_520_809_984, 3.35e12, 494.7e12),
        ("NVIDIA H100 PCIe", 85_027_323_904, 2.0e12, 378e12),
        ("NVIDIA H100 NVL", 100_485_038_080, 3.9e12, 417.5e12),
        ("NVIDIA H200", 150_754_820_096, 4.8e12, 494.7e12),
        ("NVIDIA H200 NVL", 150_754_820_096, 4.8e12, 417.5e12),
        ("NVIDIA A100-SXM4-80GB", 85_097_971_712, 2.039e12, 156e12),
        ("NVIDIA A100-SXM4-40GB", 42_405_855_232, 1.555e12, 156e12),
        ("NVIDIA A100-PCIE-40GB", 42_405_855_232, 1.555e12, 156e12),
        ("NVIDIA A100 80GB PCIe", 85_097_971_712, 1.935e12, 156e12),
        ("NVIDIA L40S", 47_697_362_944, 0.864e12, 183e12),
        ("NVIDIA L4", 23_580_639_232, 0.3e12, 60e12),
    ],
)
def test_known_devices(name: str, memory_bytes: int, bandwidth: float, tf32: float) -> None:
    gpu = find_gpu(name, memory_bytes)
    assert gpu is not None
    assert (gpu.bytes_per_s, gpu.float32) == (bandwidth, tf32)
    assert find_gpu(name.removeprefix("NVIDIA "), memory_bytes) is gpu
    assert find_gpu(name, 0) is gpu
    assert find_gpu(name, memory_bytes // 2) is None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40",
        "NVIDIA A10",
        "NVIDIA A100",
        "NVIDIA H20",
        "NVIDIA H100",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA L4S",
        "NVIDIA",
        "cpu",
        "",
    ],
)
def test_other_devices_are_unknown(name: str) -> None:
    assert find_gpu(name, 0) is None
    assert find_gpu(name, 80 * GIB) is None


def test_peaks_are_dense_and_ordered() -> None:
    for gpu in GPUS:
        # Dense half-precision is twice TF32 on every one of these; a sparse figure typed in by mistake is not.
        assert gpu.float16 == pytest.approx(2 * gpu.float32, rel=0.02)
        assert gpu.peak_flops("bfloat16") == gpu.peak_flops("float16")
        assert gpu.peak_flops("int64") is None
        assert gpu.float64 is None or gpu.float64 < gpu.float32


@pytest.mark.parametrize(
    ("counts", "t_min_ms", "bound"),
    [
        ((137438953472, 134217728, 0, 67108864), 0.2778, "compute"),  # level1/1 square matmul
        ((0, 6442450944, 0, 6442450944), 2.6844, "memory"),  # level1/19 ReLU
        ((0, 268435456, 33554432, 268435456), 0.1188, "memory"),  # level1/40 LayerNorm
        ((39535755264, 50331648, 20736, 976191488), 0.2139, "memory"),  # level1/54 conv3d
        ((0, 537133056, 0, 4), 0.1119, "memory"),  # level1/95 CrossEntropyLoss
        ((549755813888, 268435456, 67125248, 268435456), 1.1113, "compute"),  # level2/40
        ((171798691840, 8388608, 2684518400, 4194304), 0.5619, "memory"),  # level3/1 MLP
        ((1030792151040, 201326592, 32545792, 201326592), 2.0837, "compute"),  # level3/44 MiniGPTBlock
    ],
)
def test_t_min_of_kernelbench_tasks_on_h200(counts: tuple[int, int, int, int], t_min_ms: float, bound: str) -> None:
    assert H200 is not None
    roofline = analyse(facts(*counts), H200)
    assert roofline.t_min_ms == pytest.approx(t_min_ms, abs=6e-5)
    assert roofline.bound == bound
    assert roofline.arithmetic_intensity == pytest.approx(counts[0] / sum(counts[1:]))
    assert roofline.t_memory_ms == pytest.approx(sum(counts[1:]) / 4.8e12 * 1e3)


def test_dtype_chooses_the_peak() -> None:
    assert H200 is not None
    matmul = facts(10**15, 8, 0, 8)
    t_fp32_ms = analyse(matmul, H200).t_min_ms
    for dtype, ratio in (("float16", 0.5), ("bfloat16", 0.5), ("float64", 494.7 / 66.9)):
        matmul.dtype = dtype
        assert analyse(matmul, H200).t_min_ms == pytest.approx(t_fp32_ms * ratio)


def test_uncounted_flops_and_unknown_peaks_leave_the_memory_term() -> None:
    assert H200 is not None
    rnn = facts(10**15, 4800, 0, 0)
    rnn.flops_complete = False
    roofline = analyse(rnn, H200)
    assert (roofline.t_min_ms, roofline.bound, roofline.arithmetic_intensity) == (pytest.approx(1e-6), "memory", None)
    l4 = find_gpu("NVIDIA L4", 0)
    assert l4 is not None
    assert analyse(facts(10**15, 300, 0, 0, "float64"), l4).t_min_ms == pytest.approx(1e-6)


def test_a_task_without_bytes_has_no_floor() -> None:
    assert H200 is not None
    with pytest.raises(ValueError, match="byte"):
        analyse(facts(1, 0, 0, 0), H200)


def test_fields() -> None:
    task = facts(0, 2_400_000_000, 0, 2_400_000_000)
    fields = roofline_fields(task, "NVIDIA H200", 0, t_ref_ms=4.0, t_new_ms=2.0)
    assert fields == {
        "bound": "memory",
        "arithmetic_intensity": 0.0,
        "t_min_ms": pytest.approx(1.0),
        "roofline_frac": pytest.approx(0.5),
        "ref_roofline_frac": pytest.approx(0.25),
    }
    untimed = roofline_fields(task, "NVIDIA H200", 0, t_ref_ms=4.0, t_new_ms=None)
    assert untimed == {**fields, "roofline_frac": None}


@pytest.mark.parametrize(("task", "device"), [(facts(0, 8, 0, 8), "cpu"), (None, "NVIDIA H200")])
def test_fields_are_none_where_nothing_is_known(task: TaskFacts | None, device: str) -> None:
    fields = roofline_fields(task, device, 0, t_ref_ms=4.0, t_new_ms=2.0)
    assert fields == dict.fromkeys(
        ("bound", "arithmetic_intensity", "t_min_ms", "roofline_frac", "ref_roofline_frac"), None
    )


def test_impossible_times() -> None:
    assert is_impossible(0.79, 1.0, 0.8)
    assert not is_impossible(0.8, 1.0, 0.8)
    assert not is_impossible(1e-9, 1.0, 0.0)
