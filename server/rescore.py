"""Scores the steps of an evaluation log again, without a GPU: the log's own verdicts through server/scoring.py.

`replay_fields` is what a step's line must hold for that, `read` finds the lines, `rescore` scores one. Reads files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from server.eval_log import numbered
from server.rewards import RewardMode
from server.roofline import find_gpu
from server.scoring import score
from server.settings import Settings
from server.version import VERSION
from server.worker.protocol import DeviceInfo, Verdict

# What the reward depends on, and what the verdict was made with.
LOGGED_SETTINGS = (
    *("reward", "roofline_reject", "atol", "rtol", "trials", "timed_runs", "compile_timeout_s", "run_timeout_s"),
)
# The line has these of its own, under the same or a better name.
_ELSEWHERE = frozenset({"type", "eval_id", "feedback", "infra_detail", "phase_seconds"})


def replay_fields(settings: Settings, verdict: Verdict | None, device: DeviceInfo | None, code: str) -> dict[str, Any]:
    """The fields of a step's log line that scoring it again needs, beside its task_id and eval_id."""
    fields: dict[str, Any] = {
        "version": VERSION,
        "settings": {name: getattr(settings, name) for name in LOGGED_SETTINGS},
        "device": msgspec.to_builtins(device) if device is not None else None,
        "verdict": None,
    }
    if verdict is not None:
        fields["verdict"] = {k: v for k, v in msgspec.to_builtins(verdict).items() if k not in _ELSEWHERE}
    if settings.eval_log_code:
        fields["code"] = code
    return fields


# ---------------------------------------------------------------- reading


@dataclass
class Reading:
    """What was met in the files so far."""

    lines: int = 0
    torn: int = 0
    """Lines that are no JSON object, such as the last one before a crash: skipped."""


def files(path: Path) -> list[Path]:
    """A log's files, oldest first: the full ones, whose names end with a number, and the one of this name."""
    return [*(full for _, full in numbered(path)), *([path] if path.exists() else [])]


def read(path: Path, reading: Reading) -> Iterator[dict[str, Any]]:
    """Every event of one file, in order.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for line in file:
            reading.lines += 1
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict):
                yield event
            else:
                reading.torn += 1


# ---------------------------------------------------------------- scoring again


class Result(StrEnum):
    """What came of one step."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    NO_ROOFLINE = "no_roofline"
    """The roofline reward was asked for, and the roofline of its GPU or its task is not known."""
    INCOMPLETE = "incomplete"
    """The line does not hold what is needed: an older version wrote it."""


@dataclass(frozen=True)
class Rescored:
    """One step, scored again."""

    result: Result
    before: float | None
    after: float | None
    """None where there is nothing to pay for, as in the log, and where the step could not be scored again."""


def was_judged(event: Mapping[str, Any]) -> bool:
    """Whether an event is a step that was judged; resets and steps outside an episode were not."""
    return event.get("event") == "step" and event.get("eval_id") is not None


def rescore(event: Mapping[str, Any], mode: RewardMode | None = None) -> Rescored:
    """Score a judged step again. `mode` None: with the reward that the server used."""
    before = event.get("reward")
    try:
        if event["verdict"] is None:
            return Rescored(Result.UNCHANGED, before, before)  # the parser's verdict, or a fault of ours
        verdict = msgspec.convert({**event["verdict"], "eval_id": event["eval_id"], "type": "verdict"}, Verdict)
        device = msgspec.convert(event["device"], DeviceInfo | None)
        logged = event["settings"]
        settings = Settings.model_construct(
            reward=mode or logged["reward"], roofline_reject=float(logged["roofline_reject"])
        )
        task_id = str(event["task_id"])
    except (KeyError, TypeError, ValueError, AttributeError):  # msgspec's errors are ValueErrors
        return Rescored(Result.INCOMPLETE, before, None)
    if settings.reward == "roofline" and verdict.infra_code is None and verdict.outcome == "scored":
        if verdict.facts is None or device is None or find_gpu(device.name, device.memory_bytes) is None:
            return Rescored(Result.NO_ROOFLINE, before, None)
    try:
        after = score(verdict, settings, device, task_id).reward
    except ValueError:
        after = None  # a verdict that contradicts itself is a fault of the judge's, now as then
    return Rescored(Result.UNCHANGED if after == before else Result.CHANGED, before, after)
