"""Which episodes benchmarks/episodes.py plays, and what must come out of each turn. Reads benchmarks/kernels/."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_env.models import Outcome, Stage

KERNELS = Path(__file__).resolve().parent / "kernels"
# Its first call ends after KERNEL_ENV_RUN_TIMEOUT_S and half a minute for compiling; the rest is start and clean-up.
NEVER_RETURNS_LIMIT_S = 75.0

# Cheap ones first, so that a run that is cut short has shown most.
TRITON_TASKS = (
    "level1/95_CrossEntropyLoss",
    "level1/40_LayerNorm",
    "level1/1_Square_matrix_multiplication_",
    "level2/76_Gemm_Add_ReLU",
    "level1/42_Max_Pooling_2D",
    "level3/1_MLP",
    "level2/59_Matmul_Swish_Scaling",
    "level3/43_MinGPTCausalAttention",
    "level3/44_MiniGPTBlock",
    "level1/47_Sum_reduction_over_a_dimension",
    "level1/48_Mean_reduction_over_a_dimension",
    "level1/63_conv_standard_2D__square_input__square_kernel",
    "level1/19_ReLU",
    "level1/26_GELU_",
    "level1/36_RMSNorm_",
    "level1/37_FrobeniusNorm_",
    "level1/23_Softmax",
    # References that do more than they must: half of a product is zero, and a sum over a product needs no product.
    "level1/14_Matmul_for_upper_triangular_matrices",
    "level1/15_Matmul_for_lower_triangular_matrices",
    "level2/14_Gemm_Divide_Sum_Scaling",
)
CUDA_TASKS = ("level1/19_ReLU", "level1/36_RMSNorm_", "level1/47_Sum_reduction_over_a_dimension")
RELU = "level1/19_ReLU"

WRONG_OUTCOMES = {Outcome.WRONG_VALUES.value, Outcome.NOT_NORMALIZED.value, Outcome.NONFINITE.value}
EXPECTATIONS = {
    "wrong": "the subtly wrong kernel fails correctness and is not paid",
    "correct": "the correct kernel is paid",
    "illegal_access": "the illegal memory access is the submission's fault and not paid",
    "never_returns": "the kernel that never returns is ended at its deadline and not paid",
    "torch_fallback": "PyTorch's own operation is seen by the static checks or the guard, and not paid",
    "hidden_fallback": "PyTorch's own operation that a parser does not see is a format violation and not paid",
}


@dataclass(frozen=True)
class Turn:
    """One submission and what it is an example of: a key of EXPECTATIONS."""

    kind: str
    code: str

    @property
    def expectation(self) -> str:
        """What must happen, as a sentence."""
        return EXPECTATIONS[self.kind]


@dataclass(frozen=True)
class Episode:
    """One reset and the submissions that follow it."""

    name: str
    task_id: str
    language: str
    turns: tuple[Turn, ...]


def chosen(only: str, name: str) -> bool:
    """Whether `--only` means this one."""
    return any(part in name for part in only.split(","))


def correct_code(key: str) -> str:
    """The correct submission under `key`, for example "level1/19_ReLU" or "cuda/level1/19_ReLU"."""
    return (KERNELS / f"{key}.py").read_text()


def wrong_code(key: str) -> str:
    """The same submission with its error from wrong.json put in.

    Raises:
        ValueError: the text to replace is not there exactly once.
    """
    patch = json.loads((KERNELS / "wrong.json").read_text())[key]
    code = correct_code(key)
    if code.count(patch["find"]) != 1:
        raise ValueError(f"wrong.json: the text to find for {key} occurs {code.count(patch['find'])} times")
    return code.replace(patch["find"], patch["replace"])


def _pair(task_id: str) -> Episode:
    turns = (Turn("wrong", wrong_code(task_id)), Turn("correct", correct_code(task_id)))
    return Episode(f"triton {task_id}", task_id, "triton", turns)


def _cuda(task_id: str) -> Episode:
    # One turn each: load_inline compiles for about a minute.
    return Episode(f"cuda {task_id}", task_id, "cuda", (Turn("correct", correct_code(f"cuda/{task_id}")),))


def _extra(kind: str) -> Episode:
    code = (KERNELS / "extra" / f"{kind}.py").read_text()
    return Episode(f"extra {kind}", RELU, "triton", (Turn(kind, code), Turn("correct", correct_code(RELU))))


def plan() -> list[Episode]:
    """Every episode, in the order in which to play them."""
    return [
        *(_pair(task_id) for task_id in TRITON_TASKS),
        *(_extra(kind) for kind in ("torch_fallback", "hidden_fallback", "illegal_access", "never_returns")),
        *(_cuda(task_id) for task_id in CUDA_TASKS),
    ]


def passed(kind: str, row: dict[str, Any], evaluator: str) -> bool:
    """Whether a turn came out as it must. The mock evaluator runs nothing, so there it only has to be answered."""
    reward, stage, outcome = row["reward"], row["stage"], row["outcome"]
    if evaluator == "mock":
        return reward is not None
    if kind == "correct":
        return stage == Stage.SCORED.value and reward is not None and reward > 0
    unpaid = reward == 0
    if kind == "wrong":
        return unpaid and stage == Stage.CORRECTNESS.value and outcome in WRONG_OUTCOMES
    if kind == "illegal_access":
        return unpaid and outcome in (Outcome.RUNTIME_ERROR.value, Outcome.CRASHED.value)
    if kind == "never_returns":
        return unpaid and outcome == Outcome.TIMEOUT.value and row["wall_s"] < NEVER_RETURNS_LIMIT_S
    if kind == "hidden_fallback":
        return unpaid and outcome == Outcome.FORMAT_VIOLATION.value and stage != Stage.STATIC.value
    return unpaid and outcome in (Outcome.FORMAT_VIOLATION.value, Outcome.STATIC_VIOLATION.value)
