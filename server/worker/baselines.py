"""What was once measured about a task on this device, kept on disk for every judge and server that uses the directory.

A record belongs to the task's source, the GPU, the driver, torch's version and the settings it was measured with. The
references' own code decides what is stored, never a submission. Touches only its directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

import msgspec

from server.worker.protocol import DeviceInfo

MAX_RECORDS = 10_000
# Raise it when the way of measuring changes: older records are not found any more.
_FORMAT = 1
_MAX_AGE_S = 7 * 24 * 3600.0
# Of one that was disturbed, or measured at low clocks.
_MAX_DISTURBED_AGE_S = 3600.0
# (p90 - p10) / median above which a time was disturbed, or the task is launch-bound: not kept beyond this process.
_MAX_SPREAD = 0.1


class Record(msgspec.Struct):
    """A reference's own timing and what its evaluations need.

    Attributes:
        time_ms, spread, runs: as timing.Timing has them.
        overhead_ms: the judge's own work in its window around a call.
        memory_bytes: of the device, for an evaluation of this task.
        throttled: what held the clocks down meanwhile; such a record is not kept beyond this process.
    """

    time_ms: float
    spread: float
    runs: int
    overhead_ms: float
    memory_bytes: int
    throttled: list[str] = msgspec.field(default_factory=list)


class BaselineCache:
    """Records by task. Losing them, or failing to write one, costs time and nothing else."""

    def __init__(self, directory: Path | None, device: DeviceInfo, device_id: str) -> None:
        """Without a directory records last as long as this process.

        `device_id` tells GPUs of one name apart: two of them differ by more than the timing's noise.
        """
        facts = (_FORMAT, device_id, device.name, device.driver, device.torch, device.triton)
        self._device = "\0".join(map(str, facts))
        self._directory = directory
        self._known: dict[str, tuple[float, Record]] = {}
        """With the time until which it counts: a server may run for weeks."""

    def get(self, task: str, timed_runs: int) -> Record | None:
        """The record of a task (by its key), None when it was not measured here or long ago."""
        name = self._name(task, timed_runs)
        known = self._known.get(name)
        if known is None or time.time() > known[0]:
            self._known.pop(name, None)
            if (known := self._read(name)) is None:
                return None
            self._known[name] = known
        return known[1]

    def add(self, task: str, timed_runs: int, record: Record) -> Record:
        """Keep a record; the one to use, which is another judge's if that came first."""
        name = self._name(task, timed_runs)
        if len(self._known) >= MAX_RECORDS:
            self._known.clear()
        known = time.time() + _MAX_DISTURBED_AGE_S, record
        if record.spread <= _MAX_SPREAD and not record.throttled:
            with contextlib.suppress(OSError):
                self._write(name, record)
            known = self._read(name) or (time.time() + _MAX_AGE_S, record)
        self._known[name] = known
        return known[1]

    def _name(self, task: str, timed_runs: int) -> str:
        return hashlib.sha256(f"{self._device}\0{task}\0{timed_runs}".encode()).hexdigest() + ".json"

    def _read(self, name: str) -> tuple[float, Record] | None:
        if self._directory is None:
            return None
        path = self._directory / name
        try:
            until = path.stat().st_mtime + _MAX_AGE_S
            if time.time() > until:
                path.unlink(missing_ok=True)
                return None
            return until, msgspec.json.decode(path.read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _write(self, name: str, record: Record) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd, temporary = tempfile.mkstemp(dir=self._directory)
        try:
            with os.fdopen(fd, "wb") as handle:
                handle.write(msgspec.json.encode(record))
            if self._read(name) is None:
                os.replace(temporary, self._directory / name)
            else:
                os.unlink(temporary)
        except OSError:
            os.unlink(temporary)
            raise
        self._prune(self._directory)

    @staticmethod
    def _prune(directory: Path) -> None:
        paths = list(directory.glob("*.json"))
        if len(paths) > MAX_RECORDS:
            paths.sort(key=lambda path: path.stat().st_mtime)
            for path in paths[: len(paths) - MAX_RECORDS]:
                path.unlink(missing_ok=True)
