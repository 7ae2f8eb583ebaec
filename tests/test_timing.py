"""What timed calls come to: a submission's own times count only where the judge's clock agrees. No clocks here."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.worker import timing
from server.worker.timing import AGREEMENT, Agreement, Sample

CUDA = AGREEMENT["cuda"]
PAIRS = Path(__file__).parents[1] / "benchmarks" / "results" / "pairs_x10_h200.json"


def samples(event_ms: float, window_ms: float, count: int = 5) -> list[Sample]:
    """The same call `count` times."""
    return [Sample(event_ms, window_ms)] * count


def test_the_baseline_is_its_events_and_leaves_the_judges_overhead() -> None:
    measured, overhead_ms = timing.baseline([Sample(1.0, 1.25), Sample(3.0, 3.5), Sample(2.0, 2.75)])
    assert (measured.time_ms, measured.runs, measured.method) == (2.0, 3, "event")
    assert overhead_ms == 0.5


def test_an_overhead_is_never_negative() -> None:
    assert timing.baseline(samples(2.0, 1.0))[1] == 0.0


def test_event_times_count_where_the_judge_agrees() -> None:
    measured = timing.submission(samples(10.0, 10.4), 0.2, Agreement(0.05, 0.0))
    assert (measured.time_ms, measured.method) == (10.0, "event")


def test_a_forged_low_event_time_is_replaced_by_the_judges_clock() -> None:
    measured = timing.submission(samples(0.001, 10.2), 0.2, CUDA)
    assert (measured.time_ms, measured.method) == (pytest.approx(10.0 + measured.tolerance_ms), "wall")
    assert measured.tolerance_ms > 0, "so that the noise of the judge's clock is no gain either"


@pytest.mark.parametrize("event_ms", [0.0, -5.0])
def test_an_event_time_that_cannot_be_is_never_believed(event_ms: float) -> None:
    measured = timing.submission(samples(event_ms, 0.21), 0.2, CUDA)
    assert (measured.time_ms, measured.method) == (pytest.approx(0.01 + measured.tolerance_ms), "wall")


def test_an_event_time_above_the_judges_is_kept() -> None:
    """Nothing is gained by it, and the judge's window may have been measured short of an overhead that was not paid."""
    assert timing.submission(samples(10.0, 8.0), 0.2, CUDA).time_ms == 10.0


def test_an_event_time_below_the_judges_is_free_for_half_of_the_tolerance() -> None:
    believed = timing.submission(samples(10.0, 10.0 + 0.4 * CUDA.tolerance_ms(10.0, 0.0)), 0.0, CUDA)
    assert (believed.time_ms, believed.method) == (10.0, "event")
    rider = timing.submission(samples(10.0, 10.0 + 0.9 * CUDA.tolerance_ms(10.0, 0.0), 6), 0.0, CUDA)
    assert rider.method == "event"
    assert rider.time_ms == pytest.approx(10.0 + 0.4 * rider.tolerance_ms)
    more = CUDA.between * rider.time_ms
    assert rider.interval_ms == (pytest.approx(rider.time_ms - more), pytest.approx(rider.time_ms + more))


def test_calls_that_the_device_interrupted_do_not_count() -> None:
    """Seen on an H200 with two streams: the event times were right, and most windows held a time slice of 2 ms."""
    taken = [*samples(0.2, 0.4, 6), *samples(0.2, 2.6, 14)]
    measured = timing.submission(taken, 0.2, CUDA)
    assert (measured.time_ms, measured.method, measured.runs) == (0.2, "event", 6)
    assert len(timing.uninterrupted(taken, 0.2, CUDA)) == 6


def test_too_few_uninterrupted_calls_are_not_enough() -> None:
    measured = timing.submission([*samples(0.2, 0.4, 5), *samples(0.2, 2.6, 14)], 0.2, CUDA)
    assert (measured.method, measured.runs) == ("wall", 19)
    assert measured.time_ms > 2.4


def test_one_forged_call_in_five_does_not_move_the_median() -> None:
    honest = samples(10.0, 10.2, 4)
    assert timing.submission([*honest, Sample(0.001, 10.2)], 0.2, CUDA).time_ms == 10.0


def test_the_interval_is_of_the_time_that_counts() -> None:
    values = [float(value) for value in range(6, 17)]
    believed = timing.submission([Sample(value, value) for value in values], 0.0, CUDA)
    low, high = timing.median_interval(values) or (0.0, 0.0)
    more = CUDA.between * 11.0
    assert believed.interval_ms == (pytest.approx(low - more), pytest.approx(high + more))
    forged = timing.submission([Sample(0.001, value) for value in values], 0.0, CUDA)
    tolerance_ms = forged.tolerance_ms
    more = CUDA.between * (11.0 + tolerance_ms)
    assert forged.interval_ms == (
        pytest.approx(low + tolerance_ms - more),
        pytest.approx(high + tolerance_ms + more),
    )
    assert timing.submission(samples(1.0, 1.0, 5), 0.0, CUDA).interval_ms is None


def test_spread_is_relative_to_the_median() -> None:
    measured = timing.submission([Sample(float(value), float(value)) for value in range(6, 17)], 0.0, CUDA)
    assert measured.time_ms == 11.0
    assert measured.spread == pytest.approx((15.0 - 7.0) / 11.0)
    assert timing.submission(samples(3.0, 3.0), 0.0, CUDA).spread == 0.0


_TIMES = st.floats(min_value=0.0, max_value=1e6, allow_nan=False)


@given(
    windows=st.lists(_TIMES, min_size=1, max_size=20),
    claims=st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=20),
    overhead_ms=_TIMES,
    kind=st.sampled_from(sorted(AGREEMENT)),
)
def test_no_claim_gets_below_the_judges_time_by_more_than_half_of_the_agreement(
    windows: list[float], claims: list[float], overhead_ms: float, kind: str
) -> None:
    """What a forger can gain at the limit, whatever it claims, of the calls that it cannot have left out."""
    agreement = AGREEMENT[kind]
    taken = [Sample(claim, window) for claim, window in zip(claims, windows, strict=False)]
    steady = timing.uninterrupted(taken, overhead_ms, agreement)
    counted = steady if len(steady) >= timing.FIRST_LOOK else taken
    honest = timing.submission([Sample(0.0, sample.window_ms) for sample in counted], overhead_ms, agreement).wall_ms
    measured = timing.submission(taken, overhead_ms, agreement)
    most = measured.time_ms + timing.FREE * agreement.tolerance_ms(measured.time_ms, overhead_ms)
    assert most >= honest * (1 - 1e-9)


@given(slow=st.lists(st.floats(0.0, 100.0), min_size=20, max_size=20))
def test_only_calls_that_last_long_can_be_left_out(slow: list[float]) -> None:
    taken = [Sample(0.0, 0.2 + extra) for extra in slow]
    assert all(sample in timing.uninterrupted(taken, 0.2, CUDA) for sample in taken if sample.window_ms < 0.69)


def test_the_interval_of_the_median_holds_what_it_says() -> None:
    assert timing.median_interval([1.0] * 5) is None, "the extremes of five enclose the median in 94% of cases"
    assert timing.median_interval([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]) == (1.0, 6.0)
    assert timing.median_interval([float(value) for value in range(1, 21)]) == (6.0, 15.0)


def test_the_interval_covers_the_median_as_often_as_it_claims() -> None:
    generator = numpy.random.default_rng(0)
    for count in (6, 10, 20):
        covered = 0
        for _ in range(2000):
            interval = timing.median_interval(list(generator.exponential(size=count)))
            assert interval is not None
            covered += interval[0] <= numpy.log(2) <= interval[1]
        assert covered / 2000 >= timing.CONFIDENCE - 0.015


def test_processes_lie_as_near_to_one_another_as_is_stated() -> None:
    """By what an H200 measured of each kernel in ten processes."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in json.loads(PAIRS.read_text(encoding="utf-8"))["rows"]:
        if row["t_new_ms"] is not None:
            times[row["task_id"]].append(row["t_new_ms"])
    apart = [abs(t / statistics.median(mine) - 1) for mine in times.values() if len(mine) == 10 for t in mine]
    assert len(apart) >= 300
    assert sum(distance <= CUDA.between for distance in apart) >= timing.CONFIDENCE * len(apart)


def test_timing_ends_when_the_median_is_known() -> None:
    narrow, wide = [10.0, 10.01, 10.0, 10.02, 10.0, 10.01], [10.0, 11.0, 10.0, 12.0, 10.0, 11.0]
    assert timing.settled(narrow, 10.0) and not timing.settled(wide, 10.0)
    assert not timing.settled(narrow[:5], 10.0), "too few"
    assert not timing.settled([*narrow, 10.0], 10.0), "not one of the counts at which it is asked"


def test_timing_ends_when_a_submission_is_hopeless() -> None:
    slow = [200.0, 900.0, 300.0, 700.0, 500.0, 400.0]
    assert timing.settled(slow, 10.0) and not timing.settled(slow, 100.0)
    assert not timing.settled(slow, None), "the baseline is never hopeless"
