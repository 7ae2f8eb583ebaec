"""What the judge reads of a GPU's clocks, from an NVML that is not there, lacks counters, or counts."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from server.worker.nvml import Monitor, Reading


class NVMLError(Exception):
    """As pynvml's."""


class FakeNvml(SimpleNamespace):
    """The part of pynvml that is used."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 1, 0, 1

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.works:
            raise NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:  # noqa: N802
        assert device == "GPU-1234" and kind == 1
        return 1980

    def nvmlDeviceGetViolationStatus(self, device: str, policy: int) -> SimpleNamespace:  # noqa: N802
        if policy not in self.counters:
            raise NVMLError
        return SimpleNamespace(violationTime=self.counters[policy])


def monitor(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml | None, uuid: str = "1234") -> Monitor:
    """A monitor with this library; None: it is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return Monitor(uuid)


@pytest.mark.parametrize("uuid", ["1234", "GPU-1234"])
def test_what_slowed_it_down_is_named(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    fake = FakeNvml(works=True, counters={0: 5, 1: 7})
    found = monitor(monkeypatch, fake, uuid)
    before = found.read()
    assert before == Reading(1980, {"power": 5, "thermal": 7})
    fake.counters[0] = 6
    after = found.read()
    assert before is not None and after is not None
    assert after.since(before) == ["power"]
    assert before.since(before) == []


def test_a_counter_that_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = monitor(monkeypatch, FakeNvml(works=True, counters={1: 7})).read()
    assert reading is not None and reading == Reading(1980, {"thermal": 7})
    assert reading.since(Reading(1980, {})) == []


@pytest.mark.parametrize("fake", [None, FakeNvml(works=False)], ids=["not installed", "no driver"])
def test_without_nvml_nothing_is_said(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml | None) -> None:
    assert monitor(monkeypatch, fake).read() is None
