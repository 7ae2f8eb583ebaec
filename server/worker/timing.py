"""What the timed calls come to: medians, spread, and whether a candidate's own times may be believed. Pure.

The judge's window around a call holds, besides the call, work of the judge (writing the inputs, flushing the L2 cache,
copying the output) and two switches of the device between processes. Measured around the trusted baseline, whose event
times are true, the difference is that overhead; it is the same for every submission to the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy


@dataclass(frozen=True)
class Sample:
    """One timed call: the time the candidate's process reports and the judge's window around it, in ms."""

    event_ms: float
    window_ms: float


@dataclass(frozen=True)
class Agreement:
    """How far a believed event time may lie below the judge's own.

    `relative` is of the event time, `overhead` of the judge's overhead, whose own variation from process to process
    grows with the bytes it copies.
    """

    relative: float
    absolute_ms: float
    overhead: float = 0.0

    def tolerance_ms(self, event_ms: float, overhead_ms: float) -> float:
        """The most that the judge's time may exceed `event_ms`."""
        return self.relative * event_ms + self.absolute_ms + self.overhead * overhead_ms


# Two events with nothing between them are 1.3 us apart; no call is shorter.
MIN_EVENT_MS = 1e-3

# On an H200 the empty handshake varies by 0.06 ms, and on tasks of 6 GB, where the judge copies for 7 ms, the two
# medians of honest kernels lay up to 0.26 ms apart. The CPU evaluator shares its cores.
AGREEMENT = {"cuda": Agreement(0.01, 0.06, 0.03), "cpu": Agreement(0.10, 1.0, 0.10)}


@dataclass(frozen=True)
class Timing:
    """The result: `time_ms` is the median that counts, `spread` is (p90 - p10) / median, method "event" or "wall".

    `event_ms` and `wall_ms` are the two medians it was decided on: the candidate's and the judge's; `tolerance_ms` is
    how far the first could lie below the second and be believed.
    """

    time_ms: float
    spread: float
    runs: int
    method: str
    event_ms: float
    wall_ms: float
    tolerance_ms: float = 0.0


def _median(values: Sequence[float]) -> float:
    return float(numpy.median(values))


def _spread(values: Sequence[float]) -> float:
    low, middle, high = (float(q) for q in numpy.percentile(values, (10, 50, 90)))
    return (high - low) / middle if middle > 0 else 0.0


def baseline(samples: Sequence[Sample]) -> tuple[Timing, float]:
    """The trusted reference's timing, and the judge's overhead in its window in ms."""
    events = [sample.event_ms for sample in samples]
    overhead = _median([sample.window_ms - sample.event_ms for sample in samples])
    event = _median(events)
    return Timing(event, _spread(events), len(events), "event", event, event), max(0.0, overhead)


def submission(samples: Sequence[Sample], overhead_ms: float, agreement: Agreement) -> Timing:
    """A submission's timing: its event times where the judge's clock agrees, else the judge's clock."""
    events = [sample.event_ms for sample in samples]
    walls = [max(sample.window_ms - overhead_ms, 0.0) for sample in samples]
    claimed, wall = _median(events), _median(walls)
    event = max(claimed, MIN_EVENT_MS)
    tolerance_ms = agreement.tolerance_ms(event, overhead_ms)
    if claimed > 0 and wall <= event + tolerance_ms:
        return Timing(event, _spread(events), len(events), "event", event, wall, tolerance_ms)
    return Timing(max(wall, event), _spread(walls), len(walls), "wall", event, wall, tolerance_ms)
