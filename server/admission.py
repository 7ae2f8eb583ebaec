"""The tables of admitted tasks: which trials each has, or why it cannot be scored. Reads JSON lines, never torch.

The table beside this module has KernelBench's 250 tasks; `python -m server.worker.admit` makes one of anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from server.errors import TaskSourceError
from server.worker.protocol import Admission, TrialPlan

TABLE_FILE = Path(__file__).with_name("admission.jsonl")
TABLE_NAME = "admission.jsonl"
"""Of the table in a task directory, which comes first."""


class _Trial(msgspec.Struct):
    inputs: str
    atol: list[float | None]


class _Row(msgspec.Struct):
    task_id: str
    source_sha256: str
    admitted: bool
    reason: str
    margin: float | None
    trials: list[_Trial]


class AdmissionTable:
    """What is known about tasks, by id and the exact source."""

    def __init__(self, root: Path) -> None:
        """Reads the table of this package and the one in `root`, if there is one.

        Raises:
            TaskSourceError: a table is not what `admit` writes.
        """
        self._rows: dict[tuple[str, str], Admission] = {}
        for path in (TABLE_FILE, root / TABLE_NAME):
            if path.is_file():
                for row in _read(path):
                    plans = [TrialPlan(trial.inputs, trial.atol) for trial in row.trials]
                    admission = Admission(row.admitted, row.reason, plans, row.margin)
                    self._rows[row.task_id, row.source_sha256] = admission

    def get(self, task_id: str, source_sha256: str) -> Admission | None:
        """What the tables say about a task; None when they do not know it."""
        return self._rows.get((task_id, source_sha256))

    def refused(self) -> Iterator[tuple[str, str]]:
        """The ids and hashes of the tasks that are not admitted."""
        return (key for key, admission in self._rows.items() if not admission.admitted)


def _read(path: Path) -> list[_Row]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [msgspec.json.decode(line, type=_Row) for line in lines]
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise TaskSourceError(f"{path.name}: {error}") from error
