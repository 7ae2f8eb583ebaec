"""What the timed calls come to: medians, spread, and whether a candidate's own times may be believed. Pure.

The judge's window around a call holds, besides the call, work of the judge (writing the inputs, flushing the L2 cache,
copying the output) and two switches of the device between processes. Measured around the trusted baseline, whose event
times are true, the difference is that overhead; it is the same for every submission to the task. Where an event time
is not believed, the judge's clock counts, with the tolerance on top: a lie must not gain from the clock's own noise.
"""

from __future__ import annotations

import math
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
    grows with the bytes it copies. A call in which the judge's time is `interrupted_ms` above the event time tells
    nothing of either. `between` has nothing to do with belief: as a part of its time, how far apart a kernel's medians
    lie in different processes, where its memory lies elsewhere. No number of calls in one process shows that.
    """

    relative: float
    absolute_ms: float
    overhead: float = 0.0
    interrupted_ms: float = math.inf
    between: float = 0.0

    def tolerance_ms(self, event_ms: float, overhead_ms: float) -> float:
        """The most that the judge's time may exceed `event_ms`."""
        return self.relative * event_ms + self.absolute_ms + self.overhead * overhead_ms


CONFIDENCE = 0.95
# Of the median: half of the interval's width at which timing ends.
PRECISION = 0.0025
# A submission that takes so many times the reference's time is not timed any longer.
HOPELESS = 10.0
FIRST_LOOK = 6
_LOOKS = frozenset({FIRST_LOOK, 10, 15, 25, 40, 65})

# Two events with nothing between them are 1.3 us apart; no call is shorter.
MIN_EVENT_MS = 1e-3

# On an H200, where the judge's clock is the device's, the medians of 78 honest kernels of 0.06 to 1 ms lay within
# half of this tolerance in each of 1,070 evaluations, and those of 17 of KernelBench's tasks, up to 7 ms and 6 GB,
# within 0.012 ms. With two streams the device sometimes stays with the submission's process for a time slice of 2 ms
# after the work has ended: two evaluations of sixteen then came to ten times the kernel's time. The CPU evaluator's
# clock is the host's, and shares its cores.
# Of 610 evaluations of 61 kernels there, ten processes each, 95 % lay within 1 % of their kernel's median; 90 % within
# 0.43 %, and nearly all others were of matrix products of levels 2 and 3, under which the clocks move.
AGREEMENT = {"cuda": Agreement(0.004, 0.008, 0.004, 0.5, 0.01), "cpu": Agreement(0.10, 1.0, 0.10, between=0.05)}
# Of the tolerance: what an event time may lie below the judge's at no cost. No honest kernel needed more.
FREE = 0.5


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
    interval_ms: tuple[float, float] | None = None
    """Where 95 % of the medians lie that more runs in any process would come to; None for fewer than six runs."""


def _median(values: Sequence[float]) -> float:
    return float(numpy.median(values))


def _spread(values: Sequence[float]) -> float:
    low, middle, high = (float(q) for q in numpy.percentile(values, (10, 50, 90)))
    return (high - low) / middle if middle > 0 else 0.0


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95% confidence interval of the median, from order statistics alone; None for fewer than six values.

    Source: the k-th smallest and the k-th largest of n values enclose the median with probability
    1 - 2 * P(Binomial(n, 1/2) < k).
    """
    ordered = sorted(values)
    n, k, below = len(ordered), 0, 0
    while 2 * (below + math.comb(n, k)) <= (1 - CONFIDENCE) * 2**n:
        below += math.comb(n, k)
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def _stated(values: Sequence[float], between: float) -> tuple[float, float] | None:
    """The interval of the median, and on both sides what another process may differ by."""
    interval = median_interval(values)
    if interval is None:
        return None
    more = between * _median(values)
    return interval[0] - more, interval[1] + more


def settled(values: Sequence[float], reference_ms: float | None) -> bool:
    """Whether more calls would not change what these say: the median is known, or the submission is hopeless.

    Asked at fixed counts only: asking after every call would stop at the first that happens to look good.
    """
    if len(values) not in _LOOKS:
        return False
    if reference_ms is not None and min(values) > HOPELESS * reference_ms:
        return True
    interval = median_interval(values)
    return interval is not None and interval[1] - interval[0] <= 2 * PRECISION * _median(values)


def baseline(samples: Sequence[Sample]) -> tuple[Timing, float]:
    """The trusted reference's timing, and the judge's overhead in its window in ms."""
    events = [sample.event_ms for sample in samples]
    overhead = _median([sample.window_ms - sample.event_ms for sample in samples])
    event = _median(events)
    return Timing(event, _spread(events), len(events), "event", event, event), max(0.0, overhead)


def uninterrupted(samples: Sequence[Sample], overhead_ms: float, agreement: Agreement) -> list[Sample]:
    """Those in whose window the device did nothing else for long.

    A submission that claims too little can have its slow calls left out so, if they last `interrupted_ms`: the most it
    gains is the spread of such kernels, which is less than the tolerance.
    """
    most_ms = overhead_ms + agreement.interrupted_ms
    return [sample for sample in samples if sample.window_ms - sample.event_ms < most_ms]


def submission(samples: Sequence[Sample], overhead_ms: float, agreement: Agreement) -> Timing:
    """A submission's timing: its event times where the judge's clock agrees, else the judge's clock.

    An event time counts for no less than the judge's time without half of the tolerance.
    """
    steady = uninterrupted(samples, overhead_ms, agreement)
    if len(steady) >= FIRST_LOOK:
        samples = steady
    events = [sample.event_ms for sample in samples]
    walls = [max(sample.window_ms - overhead_ms, 0.0) for sample in samples]
    claimed, wall = _median(events), _median(walls)
    event = max(claimed, MIN_EVENT_MS)
    tolerance_ms = agreement.tolerance_ms(event, overhead_ms)
    if claimed > 0 and wall <= event + tolerance_ms:
        counted = max(event, wall - FREE * tolerance_ms)
        events = [max(claim, MIN_EVENT_MS) + counted - event for claim in events]
        interval = _stated(events, agreement.between)
        return Timing(counted, _spread(events), len(events), "event", event, wall, tolerance_ms, interval)
    counted = max(wall, event) + tolerance_ms
    # As wide as the judge's own, around what counts.
    interval = _stated([value + counted - wall for value in walls], agreement.between)
    return Timing(counted, _spread(walls), len(walls), "wall", event, wall, tolerance_ms, interval)
