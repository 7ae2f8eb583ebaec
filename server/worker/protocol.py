"""The messages between server, judge, zygote and candidate; connection.py carries them.

Imports neither torch nor openenv: the server uses this module too.
"""

from __future__ import annotations

from typing import Any

import msgspec

# What every judge takes for itself, and how much of what remains is handed out.
_JUDGE_BYTES = 1 << 30
_USABLE = 0.95

# ---------------------------------------------------------------- server <-> judge


class DeviceInfo(msgspec.Struct):
    """What the judge runs on."""

    kind: str  # "cuda" | "cpu"
    name: str  # e.g. "NVIDIA H200"
    memory_bytes: int = 0
    driver: str | None = None
    torch: str | None = None
    triton: str | None = None
    sandbox: str = "none"  # the level reached, as level.describe writes it


def capacity_bytes(memory_bytes: int, judges: int) -> int:
    """How much of a device's memory is handed out: all but what each judge takes for itself, and a little more."""
    return int((memory_bytes - judges * _JUDGE_BYTES) * _USABLE) if memory_bytes else 0


class Ready(msgspec.Struct, tag="ready"):
    """judge -> server: the judge and its zygote are up."""

    device: DeviceInfo


class StartFailed(msgspec.Struct, tag="start_failed"):
    """judge -> server: the judge cannot run here; the reason is a sentence for the operator."""

    reason: str


class TrialPlan(msgspec.Struct):
    """Inputs that correctness trials use: the task's own ("") or a family's, and for each output the absolute tolerance
    that must hold besides the usual one (None: none)."""

    family: str
    atol: list[float | None]


class Admission(msgspec.Struct):
    """Whether a task can be scored, and with which trials. `margin` is between the least error of an output that did no
    work and what an honest kernel may be off by, on the task's own inputs."""

    admitted: bool
    reason: str = ""
    plans: list[TrialPlan] = []
    margin: float | None = None


class Evaluate(msgspec.Struct, tag="evaluate"):
    """server -> judge: score one submission."""

    eval_id: str
    task_id: str
    task_source: str
    code: str
    language: str = "triton"
    plans: list[TrialPlan] = []  # of the task's admission; empty: its own inputs and the specification's families
    trials: int = 5
    atol: float = 1e-2
    rtol: float = 1e-2
    timed_runs: int = 20
    compile_timeout_s: float = 150.0
    run_timeout_s: float = 60.0
    budget_s: float = 240.0  # for the whole evaluation; the worker sets what is left of the step's deadline


class Cancel(msgspec.Struct, tag="cancel"):
    """server -> judge: drop the evaluation; the verdict that follows has infra_code 'cancelled'."""

    eval_id: str


class Want(msgspec.Struct, tag="want"):
    """judge -> server: a share of the GPU with room for `memory_bytes`, or, with `alone`, all others paused.

    What was held before is given up, but the memory, unless more is asked for.
    """

    alone: bool
    memory_bytes: int = 0


class Grant(msgspec.Struct, tag="grant"):
    """server -> judge: what it asked for is its own, or it may go on after a pause."""


class Pause(msgspec.Struct, tag="pause"):
    """server -> judge: another judge is going to time; stop using the GPU, answer Paused and wait for Grant."""


class Paused(msgspec.Struct, tag="paused"):
    """judge -> server: nothing of this judge's uses the GPU any more, but for what was launched before."""


class TaskFacts(msgspec.Struct):
    """What the roofline needs to know about a task; counted on the reference."""

    flops: int
    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    dtype: str  # of the floating inputs: "float32", "float16", "bfloat16"
    flops_complete: bool = True  # False where the counter does not see the work (cuDNN RNNs)


class Verdict(msgspec.Struct, tag="verdict"):
    """judge -> server: what happened. stage and outcome are the values of kernel_env.models.Stage and Outcome."""

    eval_id: str
    stage: str
    outcome: str
    feedback: str = ""
    compiled: bool = False
    correct: bool = False
    trials_passed: int = 0
    trials_total: int = 0
    max_abs_error: float | None = None
    t_ref_ms: float | None = None
    t_new_ms: float | None = None
    t_ref_spread: float | None = None
    t_new_spread: float | None = None
    t_new_interval_ms: tuple[float, float] | None = None
    timed_runs: int | None = None
    timing_method: str | None = None
    kernel_time_fraction: float | None = None
    sm_clock_mhz: int | None = None
    throttled: list[str] = []
    t_event_ms: float | None = None  # the two medians the timing was decided on, for the log
    t_wall_ms: float | None = None
    t_tolerance_ms: float | None = None
    facts: TaskFacts | None = None
    infra_code: str | None = None
    infra_detail: str = ""  # for the log, never for the client
    signal: int | None = None  # which ended a process of the submission's, where nothing says who sent it
    judge_unfit: str = ""  # why the judge must be replaced before it scores another, though this verdict stands
    phase_seconds: dict[str, float] = {}


JudgeRequest = Evaluate | Cancel | Grant | Pause
JudgeReply = Ready | StartFailed | Verdict | Want | Paused

# ---------------------------------------------------------------- judge <-> candidate


class SlotLayout(msgspec.Struct):
    """How one tensor lies in its slot."""

    nbytes: int
    shape: list[int]
    strides: list[int]
    dtype: str


class Load(msgspec.Struct, tag="load"):
    """judge -> candidate: import the submission. `class_name` is ModelNew, or Model for the baseline.

    In a `ghost` no Triton kernel runs.
    """

    path: str
    class_name: str
    guard: bool
    ghost: bool = False


class Loaded(msgspec.Struct, tag="loaded"):
    pass


class Construct(msgspec.Struct, tag="construct"):
    """judge -> candidate: build the model under `seed`. `init` is tree.flatten's spec of the arguments."""

    seed: int
    init: list[Any]
    eval_mode: bool


class Constructed(msgspec.Struct, tag="constructed"):
    """candidate -> judge: (name, shape, dtype) of the state dict, or None when weights must not be loaded."""

    state: list[tuple[str, list[int], str]] | None


GATE_BYTES = 4096
# In the gate's block, of the word by which the candidate's stream says that it is at its end.
SIGNAL_OFFSET = 256


class Slots(msgspec.Struct, tag="slots"):
    """judge -> candidate: the shared memory. One descriptor for each input, then each output, then one block that
    holds all weights one after the other, aligned (a model can have more tensors than a frame can carry descriptors),
    then the gate's word of GATE_BYTES.
    """

    inputs: list[SlotLayout]
    outputs: list[SlotLayout]
    weights: list[SlotLayout]


class SlotsMapped(msgspec.Struct, tag="slots_mapped"):
    pass


class LoadWeights(msgspec.Struct, tag="load_weights"):
    """judge -> candidate: load the weight slots, in this order of names, with strict=True."""

    names: list[str]


class WeightsLoaded(msgspec.Struct, tag="weights_loaded"):
    pass


class Run(msgspec.Struct, tag="run"):
    """judge -> candidate: call the model once. `inputs` is tree.flatten's spec; `seed` reseeds torch when not None.

    `call` is unguessable and echoed; the gate opens at `gate`.
    """

    call: int
    gate: int
    inputs: list[Any]
    seed: int | None = None
    retune: bool = False  # forget first what @triton.autotune found
    announce: bool = False  # answer Queued before Ran
    ghost: bool = False  # from here on no Triton kernel runs


class Queued(msgspec.Struct, tag="queued"):
    """candidate -> judge: forward has returned, and its kernels are on the device: what comes is no compiling."""

    call: int


class OutputMeta(msgspec.Struct):
    """Where the candidate says an output lies in its slot. Bounds-checked by the judge before use."""

    shape: list[int]
    strides: list[int]
    dtype: str
    offset: int = 0
    in_slot: bool = True


class Ran(msgspec.Struct, tag="ran"):
    """candidate -> judge: the call is over. `elapsed_ms` is a claim; the judge checks it against its own clock.
    `queued_ms` is how long it took the host to queue the work.
    """

    call: int
    elapsed_ms: float
    queued_ms: float
    spec: msgspec.Raw  # for tree.received
    outputs: list[OutputMeta]


class Failed(msgspec.Struct, tag="failed"):
    """candidate -> judge: a failure it reports of itself; believed, since it can only cost the candidate."""

    outcome: str
    message: str
    signal: int | None = None  # which ended a compiler, or another process that it needed


CandidateRequest = Load | Construct | Slots | LoadWeights | Run
CandidateReply = Loaded | Constructed | SlotsMapped | WeightsLoaded | Queued | Ran | Failed

# ---------------------------------------------------------------- judge <-> zygote


class ZygoteReady(msgspec.Struct, tag="zygote_ready"):
    """zygote -> judge: the level that candidates get and the user they run as, or why they cannot run here."""

    sandbox: str = ""
    uid: int | None = None
    error: str | None = None


class Spawn(msgspec.Struct, tag="spawn"):
    """judge -> zygote: fork a candidate into `workdir`. Two descriptors travel along: its socket and its stdout.

    A `trusted` one, the reference, has all of PyTorch; one that `links`, with load_inline, the files of its libraries.
    """

    workdir: str
    memory_bytes: int
    trusted: bool = False
    links: bool = False


class Spawned(msgspec.Struct, tag="spawned"):
    pid: int


class KillAll(msgspec.Struct, tag="kill_all"):
    """judge -> zygote: end every process below the zygote and reap it."""


class Killed(msgspec.Struct, tag="killed"):
    pass


class Freeze(msgspec.Struct, tag="freeze"):
    """judge -> zygote: stop (SIGSTOP) the candidate's first process, or every one; answered when they have stopped."""

    everything: bool


class Frozen(msgspec.Struct, tag="frozen"):
    pass


class Thaw(msgspec.Struct, tag="thaw"):
    """judge -> zygote: let everything go on."""


class Exited(msgspec.Struct, tag="exited"):
    """zygote -> judge: a candidate ended; exactly one of signal and code is set. `unstoppable`: the zygote ended it,
    since it could not be frozen."""

    pid: int
    signal: int | None = None
    code: int | None = None
    unstoppable: bool = False


ZygoteRequest = Spawn | KillAll | Freeze | Thaw
ZygoteReply = ZygoteReady | Spawned | Killed | Frozen | Exited
