"""Which of the injected faults is the cause of what a step of benchmarks/soak.py met. Pure.

A step that was answered with a fault of ours, or that needed a second attempt, must have been under a fault of a kind
that does that, at that time and on the worker that had it. Where a process is killed or stopped, the worker's directory
says which submission it had in work then; nothing in it means that it was preparing one, or between two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soak_crowd import Entry

Line = dict[str, Any]
Record = dict[str, Any]
"""An injected fault: `kind`, `began` and `ended` (time.time(); None while it lasts), `hit`, and for those of SIGNALLED
`nonces`, the submissions that the worker had in work."""

# What a step may be answered with that was in work under such a fault, and is not scored.
CODES: dict[str, frozenset[str]] = {
    "judge killed": frozenset({"worker_lost"}),
    "judge stopped": frozenset({"worker_lost"}),
    "zygote killed": frozenset({"zygote_lost"}),
    "zygote stopped": frozenset({"zygote_lost"}),
    "disk full": frozenset({"disk"}),
    "compiler missing": frozenset({"compiler_missing"}),
}
# These end a submission by a signal that may be its own: it is tried again, and then it is.
ENDS_BY_SIGNAL = {"candidate killed": "crashed", "compiler killed": "compile_error"}
SIGNALLED = frozenset({"judge killed", "judge stopped", "zygote killed", "zygote stopped", *ENDS_BY_SIGNAL})
# Those that leave nobody to evaluate for a while. The steps that wait meet their limits.
TAKES_WORKERS = frozenset({"judge killed", "judge stopped", "zygote killed", "zygote stopped", "disk full"})
WAITED_IN_VAIN = frozenset({"queue_timeout", "step_deadline"})
# How long a judge takes to start, on a slow host with others.
RESTART_S = 60.0
# Between a fault and its being noted here or there.
SLACK_S = 0.5
# A step that took so long may have met its limit in its second attempt, and is answered with what the first came to.
NEAR_DEADLINE_S = 220.0
# Submissions that end by a signal without our help.
_OWN_SIGNAL = frozenset({"kills itself", "takes all memory"})
_ATTEMPTS = 2
_SPOILS = frozenset({*CODES, *ENDS_BY_SIGNAL})


def _overlaps(record: Record, began: float, ended: float, after_s: float = SLACK_S) -> bool:
    over = record["ended"] is not None and record["ended"] + after_s < began
    return record["hit"] and record["began"] - SLACK_S < ended and not over


@dataclass(frozen=True)
class _Hit:
    kind: str
    attempts: int
    """How many of a step's attempts it can have spoilt."""
    sure: bool
    """Whether it is known that the worker had this very submission in work."""


def _hits(entry: Entry, line: Line, ended: float, records: Iterable[Record]) -> list[_Hit]:
    """The injected faults that can have spoilt a step's attempts, which began when it had waited in the queue."""
    began = entry.sent + (line.get("phase_seconds") or {}).get("queue", 0.0)
    found = []
    for record in records:
        kind, nonces = record["kind"], record["nonces"]
        if kind not in _SPOILS or not _overlaps(record, began, ended):
            continue
        if kind not in SIGNALLED:
            found.append(_Hit(kind, _ATTEMPTS, sure=False))  # it lasts
        elif not nonces or entry.nonce in nonces:
            found.append(_Hit(kind, 1, sure=entry.nonce in nonces))
    return found


def causes(entry: Entry, line: Line, ended: float, records: list[Record]) -> list[str] | None:
    """The kinds of fault that explain how a step ended, by its line in the log; empty where nothing is to be explained,
    None where something is and no injected fault does."""
    code, attempts = line.get("infra_code"), line.get("attempts") or 0
    if code in WAITED_IN_VAIN:
        near = (record for record in records if _overlaps(record, entry.sent, ended, RESTART_S))
        return sorted({record["kind"] for record in near} & TAKES_WORKERS) or None
    of_ours = code not in (None, "cancelled")
    repeated = attempts > 1 and entry.kind not in _OWN_SIGNAL
    if not of_ours and not repeated:
        return []
    needed = attempts if of_ours else attempts - 1
    if of_ours and (entry.kind in _OWN_SIGNAL or ended - entry.sent > NEAR_DEADLINE_S):
        needed = 1
    found = _hits(entry, line, ended, records)
    for hits in ([hit for hit in found if hit.sure], found):
        # Of those that only may have been it, the ones that are answered so.
        named = {hit.kind for hit in hits if not of_ours or hit.sure or code in CODES.get(hit.kind, ())}
        fits = not of_ours or any(code in CODES.get(kind, ()) for kind in named)
        if fits and sum(hit.attempts for hit in hits) >= needed:
            return sorted(named)
    return None


def excused(entry: Entry, ended: float, records: Iterable[Record]) -> bool:
    """Whether a right kernel was paid 0 because its process or its compiler was killed as often as it is believed."""
    found = [hit.kind for hit in _hits(entry, entry.answer, ended, records) if hit.kind in ENDS_BY_SIGNAL]
    return len(found) >= _ATTEMPTS and any(ENDS_BY_SIGNAL[kind] == entry.answer["outcome"] for kind in found)
