"""What travels between a trainer and the server: action, observation, state and their enums.

Touches pydantic and openenv's base types only. Every field has a default or a constraint; there are no custom
validators, because an exception raised inside one ends an OpenEnv session.
"""

from __future__ import annotations

from enum import StrEnum

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

MAX_CODE_CHARS = 1_000_000
MAX_MESSAGE_BYTES = 4 * 2**20
"""Of one message to the server: the longest source that is judged has 256,000 bytes, six times that as JSON escapes."""


class Stage(StrEnum):
    """How far a submission got. The order is READY, STATIC, COMPILE, CORRECTNESS, TIMING, SCORED."""

    READY = "ready"
    """The task was handed out; nothing has been submitted."""
    STATIC = "static"
    """The source was rejected before anything ran."""
    COMPILE = "compile"
    """Importing the module, constructing ModelNew or compiling a kernel failed."""
    CORRECTNESS = "correctness"
    """It ran, and failed a correctness trial."""
    TIMING = "timing"
    """It was correct, and failed while it was timed."""
    SCORED = "scored"
    """Correct and timed: the reward is the kernel's."""


class Outcome(StrEnum):
    """Why an answer is what it is. Most are the submission's own doing.

    Not its doing: READY (nothing was submitted), NOT_RESET and EPISODE_OVER (the step came at the wrong time),
    UNSCORABLE_TASK (the task's fault) and INFRASTRUCTURE (ours).
    """

    READY = "ready"
    """The answer to a reset."""
    SCORED = "scored"
    STATIC_VIOLATION = "static_violation"
    SYNTAX_ERROR = "syntax_error"
    IMPORT_ERROR = "import_error"
    MISSING_MODEL = "missing_model"
    COMPILE_ERROR = "compile_error"
    CONSTRUCTION_ERROR = "construction_error"
    RUNTIME_ERROR = "runtime_error"
    FORMAT_VIOLATION = "format_violation"
    """PyTorch did the work: a tensor operation in forward that the dispatch guard rejects."""
    WRONG_STRUCTURE = "wrong_structure"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    NONFINITE = "nonfinite"
    WRONG_VALUES = "wrong_values"
    NOT_NORMALIZED = "not_normalized"
    """A softmax or Frobenius output that fails its normalization check."""
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """The process was ended by a signal."""
    EXITED = "exited"
    """The process ended itself (os._exit, sys.exit)."""
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    """It printed more than the limit."""
    PROTOCOL_ERROR = "protocol_error"
    """It answered the judge with something that is not a valid message."""
    IMPOSSIBLE_TIME = "impossible_time"
    """Faster than the roofline allows."""
    UNSCORABLE_TASK = "unscorable_task"
    """The task cannot be scored on this machine: the reward is None and the feedback says why."""
    NOT_RESET = "not_reset"
    """step was called before reset."""
    EPISODE_OVER = "episode_over"
    """step was called after the last turn."""
    INFRASTRUCTURE = "infrastructure"
    """A fault of ours: the reward is None and infra_code says which."""


class InfraCode(StrEnum):
    """Which of our own parts failed. Nothing was learned about the submission: send it again, or leave it out."""

    WORKER_LOST = "worker_lost"
    """The judge's process died or stopped answering, or the server is stopping."""
    QUEUE_TIMEOUT = "queue_timeout"
    """No worker became free within KERNEL_ENV_QUEUE_TIMEOUT_S."""
    STEP_DEADLINE = "step_deadline"
    """The evaluation did not end within the step's deadline."""
    JUDGE_ERROR = "judge_error"
    """An unexpected error in the judge or the server; the server's log says more."""
    JUDGE_OUT_OF_MEMORY = "judge_out_of_memory"
    """The judge itself ran out of memory, not the submission."""
    ZYGOTE_LOST = "zygote_lost"
    """The process that starts submissions died or cannot start one."""
    COMPILER_MISSING = "compiler_missing"
    """The host has no compiler that the submission needs."""
    DISK = "disk"
    """The host's disk is full, or cannot be written."""
    GPU_LOST = "gpu_lost"
    """The GPU failed or is gone."""
    CANCELLED = "cancelled"
    """Nobody waits for the answer any more: the client is gone, or the server is stopping."""


class KernelAction(Action):
    """One submission."""

    code: str = Field(max_length=MAX_CODE_CHARS, description="Python source that defines class ModelNew")


class KernelObservation(Observation):
    """The answer to reset or step. Fields that do not apply are None. Inherits done, reward and metadata.

    Fields named `_ms` are milliseconds, `phase_seconds` are seconds. The roofline fractions can exceed 1: the floor is
    computed from the GPU's data sheet, and a time may lie a little below it without being rejected.
    """

    problem: str = Field(default="", description="After reset: the reference source and the rules")
    task_id: str = ""
    split: str | None = None
    language: str = "triton"
    turn: int = Field(default=0, description="Submissions used so far in this episode")
    max_turns: int = 4
    stage: Stage = Stage.READY
    outcome: Outcome = Outcome.READY
    feedback: str = Field(default="", description="What happened and what to change, for the model to read")
    compiled: bool | None = None
    correct: bool | None = None
    trials_passed: int | None = None
    trials_total: int | None = None
    max_abs_error: float | None = None
    speedup: float | None = Field(default=None, description="t_ref_ms / t_new_ms")
    t_ref_ms: float | None = Field(default=None, description="Median time of the eager PyTorch reference")
    t_new_ms: float | None = Field(default=None, description="Median time of the submission")
    t_ref_spread: float | None = Field(default=None, description="(p90 - p10) / median of the reference times")
    t_new_spread: float | None = Field(default=None, description="(p90 - p10) / median of the submission times")
    t_new_interval_ms: tuple[float, float] | None = Field(
        default=None, description="95% confidence interval of t_new_ms, in any process; None for fewer than six runs"
    )
    timed_runs: int | None = None
    timing_method: str | None = Field(default=None, description="'event', 'wall' (judge's clock) or 'mock'")
    kernel_time_fraction: float | None = Field(
        default=None,
        description="Share of t_new_ms that a call does not take when the submission's Triton kernels do nothing",
    )
    sm_clock_mhz: int | None = Field(default=None, description="The GPU's clock after the timed runs")
    throttled: list[str] = Field(
        default_factory=list,
        description="What held the GPU's clocks down while it, or the reference, was timed: 'power', 'thermal'",
    )
    bound: str | None = Field(default=None, description="'compute' or 'memory': the roofline term that binds")
    arithmetic_intensity: float | None = Field(default=None, description="FLOP per compulsory byte")
    t_min_ms: float | None = Field(default=None, description="Roofline floor")
    roofline_frac: float | None = Field(default=None, description="t_min_ms / t_new_ms")
    ref_roofline_frac: float | None = Field(default=None, description="t_min_ms / t_ref_ms")
    best_reward: float | None = Field(default=None, description="Best reward of the episode so far")
    evaluator: str = Field(default="", description="'gpu', 'cpu' or 'mock'; mock times are not measurements")
    gpu: str | None = Field(default=None, description="The device's name")
    infra_code: InfraCode | None = None
    phase_seconds: dict[str, float] = Field(default_factory=dict, description="Wall seconds spent in each phase")


class KernelState(State):
    """Session state. Inherits episode_id and step_count."""

    task_id: str | None = None
    language: str | None = None
    split: str | None = None
    turn: int = 0
    max_turns: int = 4
    best_reward: float | None = None
    done: bool = False
