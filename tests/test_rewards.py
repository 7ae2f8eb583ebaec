"""The two reward formulas, and what is never paid."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.rewards import reward, roofline_reward, speedup_reward
from server.roofline import Roofline
from server.worker.protocol import Verdict

TIMES_MS = st.floats(min_value=1e-6, max_value=1e6)
BAD_TIMES = [0.0, -1.0, math.nan, math.inf, -math.inf]
ROOFLINE = Roofline(t_min_ms=0.5, bound="memory", arithmetic_intensity=0.0, t_memory_ms=0.5)


def scored(t_ref_ms: float | None = 2.0, t_new_ms: float | None = 1.0) -> Verdict:
    return Verdict("id", "scored", "scored", compiled=True, correct=True, t_ref_ms=t_ref_ms, t_new_ms=t_new_ms)


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [(1.0, 0.3), (2.0, 1.3), (8.0, 3.3), (1000.0, 3.3), (2**-0.1, 0.2), (0.5, 0.1), (1e-9, 0.1)],
)
def test_speedup_reward_is_clamped_log2(speedup: float, expected: float) -> None:
    assert speedup_reward(speedup) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("t_min_ms", "t_new_ms", "expected"), [(1.0, 1.0, 3.0), (1.0, 2.0, 1.65), (1.0, 0.9, 3.0), (1.0, 1e9, 0.3)]
)
def test_roofline_reward_is_the_share_reached(t_min_ms: float, t_new_ms: float, expected: float) -> None:
    assert roofline_reward(t_min_ms, t_new_ms) == pytest.approx(expected)


@pytest.mark.parametrize("bad", BAD_TIMES)
def test_bad_times_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="speedup"):
        speedup_reward(bad)
    with pytest.raises(ValueError, match="t_min_ms"):
        roofline_reward(bad, 1.0)
    with pytest.raises(ValueError, match="t_new_ms"):
        roofline_reward(1.0, bad)
    with pytest.raises(ValueError, match="t_ref_ms"):
        reward(scored(t_ref_ms=bad), None, "speedup")
    with pytest.raises(ValueError, match="t_new_ms"):
        reward(scored(t_new_ms=bad), ROOFLINE, "roofline")


@given(TIMES_MS, TIMES_MS)
def test_a_correct_kernel_always_beats_a_wrong_one(t_ref_ms: float, t_new_ms: float) -> None:
    verdict = scored(t_ref_ms, t_new_ms)
    assert 0.1 - 1e-12 <= reward(verdict, None, "speedup") <= 3.3
    assert 0.3 <= reward(verdict, ROOFLINE, "roofline") <= 3.0


@given(TIMES_MS, TIMES_MS, TIMES_MS)
def test_faster_is_never_paid_less(t_ref_ms: float, a_ms: float, b_ms: float) -> None:
    fast, slow = scored(t_ref_ms, min(a_ms, b_ms)), scored(t_ref_ms, max(a_ms, b_ms))
    assert reward(fast, None, "speedup") >= reward(slow, None, "speedup")
    assert reward(fast, ROOFLINE, "roofline") >= reward(slow, ROOFLINE, "roofline")


def test_modes_pay_different_things() -> None:
    assert reward(scored(), ROOFLINE, "speedup") == pytest.approx(1.3)
    assert reward(scored(), ROOFLINE, "roofline") == pytest.approx(0.3 + 2.7 * 0.5)


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("id", "static", "static_violation"),
        Verdict("id", "correctness", "wrong_values", compiled=True, t_ref_ms=2.0, t_new_ms=1.0),
        Verdict("id", "timing", "impossible_time", compiled=True, correct=True, t_ref_ms=2.0, t_new_ms=0.001),
        Verdict("id", "timing", "timeout", compiled=True, correct=True),
        Verdict("id", "scored", "scored", correct=False, t_ref_ms=2.0, t_new_ms=1.0),
        Verdict("id", "scored", "impossible_time", correct=True, t_ref_ms=2.0, t_new_ms=0.001),
        Verdict("id", "timing", "scored", correct=True, t_ref_ms=2.0, t_new_ms=1.0),
    ],
)
def test_only_correct_and_scored_is_paid(verdict: Verdict) -> None:
    assert reward(verdict, ROOFLINE, "speedup") == 0.0
    assert reward(verdict, ROOFLINE, "roofline") == 0.0


def test_an_infrastructure_fault_has_no_number() -> None:
    fault = Verdict("id", "compile", "infrastructure", infra_code="worker_lost")
    with pytest.raises(ValueError, match="worker_lost"):
        reward(fault, ROOFLINE, "speedup")


def test_missing_times_and_missing_roofline_are_refused() -> None:
    with pytest.raises(ValueError, match="t_new_ms"):
        reward(scored(t_new_ms=None), None, "speedup")
    with pytest.raises(ValueError, match="t_ref_ms"):
        reward(scored(t_ref_ms=None), None, "speedup")
    with pytest.raises(ValueError, match="roofline"):
        reward(scored(), None, "roofline")
