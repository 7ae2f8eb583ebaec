"""The records of references' times on disk: shared, first come first kept, and never a reason to fail."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("msgspec")

from server.worker import baselines
from server.worker.baselines import BaselineCache, Record
from server.worker.nvml import Reading
from server.worker.protocol import DeviceInfo
from server.worker.timing import Sample

DEVICE = DeviceInfo(kind="cuda", name="NVIDIA H200", driver="570.1", torch="2.11", triton="3.6")


def record(time_ms: float = 1.5, spread: float = 0.01) -> Record:
    return Record(time_ms, spread, 20, 0.25, 1 << 30)


def cache(directory: Path | None, device: DeviceInfo = DEVICE, uuid: str = "GPU-1") -> BaselineCache:
    return BaselineCache(directory, device, uuid)


def test_a_record_is_found_by_every_judge_of_the_gpu(tmp_path: Path) -> None:
    first = cache(tmp_path / "made")
    assert first.get("task", 20) is None
    assert first.add("task", 20, record()) == record()
    assert first.get("task", 20) == cache(tmp_path / "made").get("task", 20) == record()


@pytest.mark.parametrize("other", ["task", "runs", "gpu", "driver", "torch"])
def test_what_was_measured_otherwise_is_another_record(tmp_path: Path, other: str) -> None:
    cache(tmp_path).add("task", 20, record())
    device = DeviceInfo(**{name: getattr(DEVICE, name) for name in DEVICE.__struct_fields__})
    if other in ("driver", "torch"):
        setattr(device, other, "9.9")
    found = cache(tmp_path, device, "GPU-2" if other == "gpu" else "GPU-1")
    assert found.get("another" if other == "task" else "task", 100 if other == "runs" else 20) is None


def test_the_first_of_two_judges_is_believed_by_both(tmp_path: Path) -> None:
    first, second = cache(tmp_path), cache(tmp_path)
    first.add("task", 20, record(1.0))
    assert second.add("task", 20, record(1.01)).time_ms == 1.0
    assert second.get("task", 20) == record(1.0)


def test_a_record_grows_stale(tmp_path: Path) -> None:
    cache(tmp_path).add("task", 20, record(1.0))
    (path,) = tmp_path.iterdir()
    os.utime(path, (0, 0))
    later = cache(tmp_path)
    assert later.get("task", 20) is None
    assert later.add("task", 20, record(2.0)).time_ms == 2.0
    assert cache(tmp_path).get("task", 20) == record(2.0)


@pytest.mark.parametrize(("spread", "lasts_s"), [(0.01, 7 * 24 * 3600), (0.5, 3600)])
def test_a_record_grows_stale_also_in_a_process_that_runs_for_weeks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: float, lasts_s: int
) -> None:
    mine = cache(tmp_path)
    mine.add("task", 20, record(spread=spread))
    began = baselines.time.time()
    for after_s, known in ((lasts_s - 60, True), (lasts_s + 60, False)):
        monkeypatch.setattr(baselines.time, "time", lambda after_s=after_s: began + after_s)
        assert (mine.get("task", 20) is not None) is known


def test_a_disturbed_measurement_is_not_kept_for_others(tmp_path: Path) -> None:
    mine = cache(tmp_path)
    mine.add("task", 20, record(spread=0.5))
    assert mine.get("task", 20) is not None
    assert cache(tmp_path).get("task", 20) is None


def test_what_was_measured_at_low_clocks_is_not_kept_for_others(tmp_path: Path) -> None:
    mine = cache(tmp_path)
    slowed = record()
    slowed.throttled = ["power"]
    mine.add("task", 20, slowed)
    assert mine.get("task", 20) == slowed
    assert cache(tmp_path).get("task", 20) is None


@pytest.mark.parametrize(
    ("slowed", "quiet", "rounds"),
    [
        ([True, False], [True, True], 2),
        ([True, True, True], [True, True, True], 3),
        ([False, False], [False, True], 2),
        # The last try that low clocks get may be another's process's to spoil.
        ([True, True, True, True], [True, True, False, True], 4),
    ],
)
def test_the_reference_is_timed_again_at_low_clocks_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, slowed: list[bool], quiet: list[bool], rounds: int
) -> None:
    evaluation = pytest.importorskip("server.worker.evaluation")
    readings = [Reading(1980, {"power": power}) for low in slowed for power in (0, int(low))]
    device = SimpleNamespace(kind="cuda", health=iter(readings).__next__, is_quiet=iter(quiet).__next__)
    host = SimpleNamespace(device=device, lease=SimpleNamespace(alone=lambda: None))
    timed: list[bool] = []

    def timed_calls(*_: object) -> list[Sample]:
        timed.append(True)
        return [Sample(1.0, 1.5)]

    monkeypatch.setattr(evaluation, "Evaluation", lambda *_: MagicMock())
    monkeypatch.setattr(evaluation, "SharedSlots", lambda *_: MagicMock())
    monkeypatch.setattr(evaluation, "timed_calls", timed_calls)
    measured = evaluation.measure_baseline(MagicMock(), MagicMock(), host, 0.0)
    assert len(timed) == rounds
    assert measured.throttled == (["power"] if slowed[-1] else [])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"time_ms": "fast"}', b"\xff\xfe"])
def test_a_broken_record_is_measured_again(tmp_path: Path, content: bytes) -> None:
    cache(tmp_path).add("task", 20, record(1.0))
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert cache(tmp_path).get("task", 20) is None
    cache(tmp_path).add("task", 20, record(2.0))
    assert cache(tmp_path).get("task", 20) == record(2.0)
    assert list(tmp_path.iterdir()) == [path], "nothing temporary is left"


@pytest.mark.parametrize("blocked", ["none", "a file"])
def test_without_a_directory_records_last_as_long_as_the_process(tmp_path: Path, blocked: str) -> None:
    (tmp_path / "file").write_text("")
    mine = cache(None if blocked == "none" else tmp_path / "file")
    mine.add("task", 20, record())
    assert mine.get("task", 20) == record()
    assert cache(None).get("task", 20) is None


def test_the_directory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_RECORDS", 3)
    mine = cache(tmp_path)
    for number in range(10):
        mine.add(f"task {number}", 20, record())
    assert len(list(tmp_path.iterdir())) == 3
    assert mine.get("task 9", 20) == record()
