"""Rewards as pure functions of a verdict, so that a stored verdict can be scored again offline.

Touches nothing: no clock, no environment, no device. Both rewards are 0.3 for being correct plus a term for speed:

* speedup:  ``0.3 + clamp(log2(t_ref / t_new), -0.2, 3.0)``, between 0.1 and 3.3;
* roofline: ``0.3 + 2.7 * min(t_min / t_new, 1)``, between 0.3 and 3.0.

A correct kernel, however slow, is therefore always paid more than a wrong one, which gets 0.
"""

from __future__ import annotations

import math
from typing import Literal

from server.roofline import Roofline
from server.worker.protocol import Verdict

RewardMode = Literal["speedup", "roofline"]

CORRECT = 0.3
MIN_LOG2_SPEEDUP = -0.2
MAX_LOG2_SPEEDUP = 3.0
ROOFLINE_WEIGHT = 2.7


def _require_positive(name: str, value: float | None) -> float:
    if value is None or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return value


def speedup_reward(speedup: float) -> float:
    """Reward of a correct kernel that is ``speedup`` times as fast as the eager reference.

    Raises:
        ValueError: speedup is zero, negative, infinite or NaN.
    """
    gain = math.log2(_require_positive("speedup", speedup))
    return CORRECT + min(max(gain, MIN_LOG2_SPEEDUP), MAX_LOG2_SPEEDUP)


def roofline_reward(t_min_ms: float, t_new_ms: float) -> float:
    """Reward of a correct kernel that takes ``t_new_ms`` where the hardware's floor is ``t_min_ms``.

    Raises:
        ValueError: a time is zero, negative, infinite or NaN.
    """
    share = _require_positive("t_min_ms", t_min_ms) / _require_positive("t_new_ms", t_new_ms)
    return CORRECT + ROOFLINE_WEIGHT * min(share, 1.0)


def reward(verdict: Verdict, roofline: Roofline | None, mode: RewardMode) -> float:
    """Reward of one submission: 0.0 unless it was correct and scored, always finite.

    Args:
        verdict: what the judge (or the mock evaluator) reported.
        roofline: the task's roofline on the verdict's device; needed in mode "roofline" only.
        mode: which reward to pay.

    Raises:
        ValueError: the verdict is an infrastructure fault, which has no reward at all (a number here would enter the
            trainer's baseline as if the model had earned it); a scored verdict carries a time that is missing,
            nonpositive, infinite or NaN; or mode "roofline" was asked for without a roofline.
    """
    if verdict.infra_code is not None:
        raise ValueError(f"an infrastructure fault ({verdict.infra_code}) has no reward")
    if not (verdict.correct and verdict.stage == "scored" and verdict.outcome == "scored"):
        return 0.0
    t_new_ms = _require_positive("t_new_ms", verdict.t_new_ms)
    if mode == "roofline":
        if roofline is None:
            raise ValueError("the roofline reward needs a GPU with a known roofline")
        return roofline_reward(roofline.t_min_ms, t_new_ms)
    return speedup_reward(_require_positive("t_ref_ms", verdict.t_ref_ms) / t_new_ms)
