"""From a verdict to what the trainer sees: observation fields, feedback and reward. Pure; touches nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernel_env.models import InfraCode, Outcome, Stage
from server.rewards import reward
from server.roofline import Roofline, analyse, find_gpu, is_impossible, roofline_fields
from server.settings import Settings
from server.text import bound
from server.worker.protocol import DeviceInfo, Verdict
from server.worker.timing import FIRST_LOOK, HOPELESS

MAX_FEEDBACK_CHARS = 4000
NEAR_ROOF = 0.85

_INFRA_CODES = frozenset(code.value for code in InfraCode)
_STAGES = frozenset(stage.value for stage in Stage)

_DIAGONAL = "a product with a diagonal matrix is a scaling of rows"
_TRIANGULAR = "half of each triangular factor is zero"
_COLLAPSES = "a sum or mean after a linear operation can be taken of its weights or inputs instead"
_CAUSAL = "causal attention needs half of the scores"
# The FLOPs counted on these references are more than their results need, so a correct kernel can be faster than the
# compute term of the roofline. Only the memory term may reject its timing.
REFERENCE_DOES_MORE = {
    "level1/12_Matmul_with_diagonal_matrices_": _DIAGONAL,
    "level1/14_Matmul_for_upper_triangular_matrices": _TRIANGULAR,
    "level1/15_Matmul_for_lower_triangular_matrices": _TRIANGULAR,
    "level2/13_ConvTranspose3d_Mean_Add_Softmax_Tanh_Scaling": _COLLAPSES,
    "level2/14_Gemm_Divide_Sum_Scaling": _COLLAPSES,
    "level2/18_Matmul_Sum_Max_AvgPool_LogSumExp_LogSumExp": _COLLAPSES,
    "level2/38_ConvTranspose3d_AvgPool_Clamp_Softmax_Multiply": _COLLAPSES,
    "level2/42_ConvTranspose2d_GlobalAvgPool_BiasAdd_LogSumExp_Sum_Multiply": _COLLAPSES,
    "level2/44_ConvTranspose2d_Multiply_GlobalAvgPool_GlobalAvgPool_Mean": _COLLAPSES,
    "level2/50_ConvTranspose3d_Scaling_AvgPool_BiasAdd_Scaling": _COLLAPSES,
    "level2/51_Gemm_Subtract_GlobalAvgPool_LogSumExp_GELU_ResidualAdd": _COLLAPSES,
    "level2/65_Conv2d_AvgPool_Sigmoid_Sum": _COLLAPSES,
    "level2/98_Matmul_AvgPool_GELU_Scale_Max": _COLLAPSES,
    "level3/43_MinGPTCausalAttention": _CAUSAL,
    "level3/44_MiniGPTBlock": _CAUSAL,
    "level3/49_Mamba2ReturnFinalState": "the outputs within the blocks are computed and not returned",
    "level3/50_ReLUSelfAttention": _CAUSAL,
}


@dataclass(frozen=True)
class Score:
    """One scored submission."""

    fields: dict[str, Any]
    """KernelObservation fields: stage, outcome, feedback and the measurements."""
    reward: float | None
    """None where there is nothing to pay for: a fault of ours, or a task that cannot be scored here."""
    uses_turn: bool
    """False for a fault of ours: the submission may be sent again."""


def score(verdict: Verdict, settings: Settings, device: DeviceInfo | None, task_id: str) -> Score:
    """Scores one verdict.

    Raises:
        ValueError: the verdict contradicts itself (unknown stage, scored without times): a fault of the judge.
    """
    if verdict.infra_code is not None or verdict.outcome == Outcome.INFRASTRUCTURE.value:
        # The verdict's own detail is for the log; the client gets the code.
        code = verdict.infra_code if verdict.infra_code in _INFRA_CODES else InfraCode.JUDGE_ERROR
        return infrastructure(InfraCode(code), Stage(verdict.stage) if verdict.stage in _STAGES else Stage.READY)
    stage, outcome = Stage(verdict.stage), Outcome(verdict.outcome)
    fields: dict[str, Any] = {
        "compiled": verdict.compiled,
        "correct": verdict.correct,
        "trials_passed": verdict.trials_passed if verdict.trials_total else None,
        "trials_total": verdict.trials_total or None,
        "max_abs_error": _finite(verdict.max_abs_error),
        "t_ref_ms": verdict.t_ref_ms,
        "t_new_ms": verdict.t_new_ms,
        "t_ref_spread": verdict.t_ref_spread,
        "t_new_spread": verdict.t_new_spread,
        "t_new_interval_ms": verdict.t_new_interval_ms,
        "timed_runs": verdict.timed_runs,
        "timing_method": verdict.timing_method,
        "kernel_time_fraction": verdict.kernel_time_fraction,
        "sm_clock_mhz": verdict.sm_clock_mhz,
        "throttled": verdict.throttled,
    }
    roofline = _roofline(verdict, device)
    if device is not None:
        fields |= roofline_fields(verdict.facts, device.name, device.memory_bytes, verdict.t_ref_ms, verdict.t_new_ms)
    if stage is not Stage.SCORED or outcome is not Outcome.SCORED:
        unscorable = outcome is Outcome.UNSCORABLE_TASK
        fields |= {"stage": stage, "outcome": outcome, "feedback": bound(verdict.feedback, MAX_FEEDBACK_CHARS)}
        return Score(fields, None if unscorable else 0.0, uses_turn=True)
    amount = reward(verdict, roofline, settings.reward)
    if verdict.t_new_ms is None or verdict.t_ref_ms is None or not verdict.correct:
        raise ValueError("a scored verdict must be correct and carry both times")
    if roofline is not None:
        floor_ms = roofline.t_memory_ms if task_id in REFERENCE_DOES_MORE else roofline.t_min_ms
        if is_impossible(verdict.t_new_ms, floor_ms, settings.roofline_reject):
            feedback = (
                f"The outputs were correct, but {_ms(verdict.t_new_ms)} is less than {settings.roofline_reject:g} of "
                f"{_ms(floor_ms)}, the least time in which this GPU can do the task's work. Such a timing is not "
                "believed: do all of the work inside every call of forward."
            )
            fields |= {"stage": Stage.TIMING, "outcome": Outcome.IMPOSSIBLE_TIME, "feedback": feedback}
            return Score(fields, 0.0, uses_turn=True)
    fields |= {"stage": stage, "outcome": outcome, "speedup": verdict.t_ref_ms / verdict.t_new_ms}
    fields["feedback"] = _success_feedback(verdict, verdict.t_ref_ms, verdict.t_new_ms, roofline)
    return Score(fields, amount, uses_turn=True)


def infrastructure(code: InfraCode, stage: Stage = Stage.READY) -> Score:
    """The score of a fault of ours: no reward, no turn used, and nothing for a model to learn from."""
    feedback = (
        f"The server could not evaluate this submission ({code.value}). That is not the kernel's fault: there is no "
        "reward, and no turn was used. Submit it again."
    )
    fields = {"stage": stage, "outcome": Outcome.INFRASTRUCTURE, "infra_code": code, "feedback": feedback}
    return Score(fields, None, uses_turn=False)


def _roofline(verdict: Verdict, device: DeviceInfo | None) -> Roofline | None:
    gpu = find_gpu(device.name, device.memory_bytes) if device is not None else None
    return analyse(verdict.facts, gpu) if verdict.facts is not None and gpu is not None else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(value: float) -> str:
    return f"{value:.4g} ms"


def _success_feedback(verdict: Verdict, t_ref_ms: float, t_new_ms: float, roofline: Roofline | None) -> str:
    """How fast it was, how much room the hardware leaves, and where to look for it."""
    speedup = t_ref_ms / t_new_ms
    relation = f"{speedup:.2f}x as fast as" if speedup >= 1 else f"slower ({speedup:.2f}x) than"
    parts = [f"Correct. It takes {_ms(t_new_ms)}, {relation} eager PyTorch ({_ms(t_ref_ms)})."]
    if t_new_ms > HOPELESS * t_ref_ms and verdict.timed_runs == FIRST_LOOK:
        parts.append(f"It was timed {FIRST_LOOK} times only, since it is over {HOPELESS:.0f} times slower.")
    if verdict.feedback:
        parts.insert(0, verdict.feedback)
    if roofline is not None:
        share = roofline.t_min_ms / t_new_ms
        parts.append(
            f"That is {share:.0%} of this GPU's roofline for the task: the floor is {_ms(roofline.t_min_ms)} and "
            f"{'memory bandwidth' if roofline.bound == 'memory' else 'arithmetic'} sets it."
        )
        if share >= NEAR_ROOF:
            parts.append("Little is left to gain.")
        elif roofline.bound == "memory":
            parts.append(
                "To get closer: read every input and write every output once, in one fused pass where possible, "
                "with wide contiguous accesses and enough programs to fill the GPU."
            )
        else:
            parts.append(
                "To get closer: keep the tensor cores fed (tl.dot with larger tiles, more pipeline stages and warps) "
                "and fuse what follows the product into the same kernel."
            )
    return bound(" ".join(parts), MAX_FEEDBACK_CHARS)
