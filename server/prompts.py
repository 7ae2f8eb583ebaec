"""The problem text that reset hands to the model: the reference and every rule that decides the reward.

Touches nothing: plain strings in, a plain string out. A rule that the judge enforces and a model cannot guess belongs
here; server paths do not. Imports no torch.
"""

from __future__ import annotations

import re
from typing import Literal

from server.worker.inputs import extra_trials, family_named
from server.worker.protocol import Admission, TrialPlan

Language = Literal["triton", "cuda"]
Evaluator = Literal["gpu", "cpu", "mock"]

SOFTMAX = "level1/23_Softmax"
FROBENIUS = "level1/37_FrobeniusNorm_"


def extra_inputs_text(task_id: str, admission: Admission | None = None) -> list[str]:
    """What a task's correctness trials use beyond one draw of its own inputs, one sentence each."""
    texts = [
        "Every trial draws fresh inputs from the task's own generator, with a seed you cannot know.",
        "At least one trial uses fresh weights.",
    ]
    plans = admission.plans if admission is not None else []
    families = [family_named(plan.family) for plan in plans if plan.family] if plans else extra_trials(task_id)
    if families:
        values = "; ".join(family.description for family in families)
        texts.append(f"Some trials use other inputs at the original shape: {values}.")
    for plan in plans:
        if tolerances := _tight(plan):
            which = f"these inputs: {family_named(plan.family).description}" if plan.family else "the task's own inputs"
            texts.append(
                f"On {which}, the usual tolerance alone would accept outputs that did no work: there the absolute "
                f"error may be at most {tolerances}."
            )
    return texts


def _tight(plan: TrialPlan) -> str:
    """The tolerances that hold besides the usual one, in words; "" when none does."""
    several = len(plan.atol) > 1
    return ", ".join(
        f"{atol:.3g}{f' for output {number}' if several else ''}"
        for number, atol in enumerate(plan.atol)
        if atol is not None
    )


def problem_text(
    *,
    task_id: str,
    source: str,
    language: Language,
    evaluator: Evaluator,
    gpu_name: str | None,
    max_turns: int,
    atol: float,
    rtol: float,
    extra_inputs: list[str],
    trials: int = 5,
    compile_timeout_s: float = 150.0,
    run_timeout_s: float = 60.0,
    reward: Literal["speedup", "roofline"] = "speedup",
    small: bool = False,
) -> str:
    """The whole problem for one episode.

    Args:
        task_id: for example "level1/19_ReLU".
        source: the reference module, which defines Model, get_inputs and get_init_inputs.
        language: what the kernel must be written in.
        evaluator: "cpu" and "mock" change what runs and what a time means.
        gpu_name: the device that times the kernel, None where there is none.
        max_turns: submissions in the episode.
        atol: absolute tolerance, as configured; tasks with their own rule state it.
        rtol: relative tolerance.
        extra_inputs: sentences about the trials' inputs, from `extra_inputs_text`.
        trials: correctness trials of a submission.
        compile_timeout_s: limit on import, construction and compilation, in seconds.
        run_timeout_s: limit on the trials and the timing, in seconds.
        reward: the reward in force.
        small: the source is a smaller variant of the task.
    """
    sections = [
        f"Write a faster replacement for the PyTorch module `Model` below (task {task_id}).\n"
        f"{_target(language, evaluator, gpu_name, small)} You have {_count(max_turns, 'submission')}. "
        "After each one you are told how far it got, what failed and how fast it was.",
        f"Reference:\n\n{_fenced(source)}",
        _section("What to submit", _submission_rules(language, evaluator)),
        _section("What forward may do", _FORWARD_RULES),
        _section("Correctness", _correctness_rules(task_id, trials, atol, rtol) + extra_inputs),
        _section("Weights and mode", _WEIGHT_RULES),
        _section("Time", _timing_rules(evaluator, compile_timeout_s, run_timeout_s)),
        _section("Reward", _reward_rules(reward, evaluator)),
    ]
    return "\n\n".join(sections) + "\n"


def _section(title: str, rules: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"- {rule}" for rule in rules)])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _fenced(source: str) -> str:
    """``source`` as a Markdown code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{source.rstrip()}\n{fence}"


def _target(language: Language, evaluator: Evaluator, gpu_name: str | None, small: bool) -> str:
    tool = {"triton": "Triton", "cuda": "CUDA C++"}[language]
    if evaluator == "gpu":
        return f"Use {tool}. It is run and timed on: {gpu_name or 'an NVIDIA GPU'}."
    if evaluator == "cpu":
        variant = ", on a smaller variant of the task" if small else ""
        if language == "cuda":
            return f"Use C++ through load_inline. It is run and timed on a CPU{variant}."
        return f"Use Triton. It is run on a CPU by Triton's interpreter{variant}."
    return f"Use {tool}. This server only checks the source and makes up the times: nothing is run."


_LOAD_INLINE = (
    "Compile C++ with `torch.utils.cpp_extension.load_inline`, called once at module level. List the functions to bind "
    "in `functions=[...]`."
)


def _submission_rules(language: Language, evaluator: Evaluator) -> list[str]:
    rules = [
        "One Python module, complete with its imports, that defines `class ModelNew(torch.nn.Module)`.",
        "`ModelNew.__init__` takes the same arguments as `Model.__init__`, and `forward` the same as `Model.forward`.",
        "The module is loaded on its own: `Model` and the other names of the reference are not defined in it.",
    ]
    if language == "triton":
        rules.append("Write at least one `@triton.jit` kernel and launch it in `forward`.")
        if evaluator == "cpu":
            rules.append(
                "The interpreter takes about 2 ms a program, so launch few, large ones. `@triton.autotune` uses its "
                "first valid configuration."
            )
        return rules
    if evaluator == "cpu":
        return [
            *rules,
            _LOAD_INLINE,
            "There is no CUDA here: pass `cpp_sources` only, with loops in plain C++ over the tensors' data pointers.",
        ]
    return [
        *rules,
        _LOAD_INLINE + " Write at least one `__global__` kernel in `cuda_sources` and launch it in `forward`.",
        "Compile time counts against the limit below. Fast form, seconds: the only headers are `torch/extension.h` "
        "(first), `cuda_runtime.h` and CUDA's other small ones, `ATen/cuda/CUDAContext.h` and `c10/cuda/CUDAGuard.h`; "
        "PyTorch is there to check and allocate tensors and for the current stream. `torch::nn`, `torch::autograd`, "
        "`requires_grad(true)`, or a `#define` of PyTorch's or CUDA's macros before the headers, takes half a minute.",
    ]


_FORWARD_RULES = [
    "Your kernels must do the arithmetic. PyTorch's tensor operations are checked while `forward` runs, in the "
    "trials and in timing; a violation scores 0.",
    "Allowed: allocate and fill (`empty`, `zeros`, `full`), views and layout (`view`, `reshape`, `permute`, "
    "`contiguous`), dtype casts, copies on the same device (`clone`, `copy_`), and reading shapes, strides and dtypes.",
    "Not allowed: tensor arithmetic, comparisons, reductions, matmul, convolution, `torch.nn.functional`, calling "
    "`nn` layers, `torch.compile`, `.item()` or `if tensor:`, copies to the host (`.cpu()`, `.tolist()`, `.numpy()`).",
    "The same holds inside an extension: no ATen, cuBLAS or cuDNN operation may do the work.",
    "Finish the work in `forward`, on the current stream. Do not write to the inputs.",
]


def _correctness_rules(task_id: str, trials: int, atol: float, rtol: float) -> list[str]:
    absolute = f"atol={atol:g}"
    if task_id in (SOFTMAX, FROBENIUS):
        absolute = f"atol=min({atol:g}, max(abs(expected)) * 1e-5)"
    rules = [
        f"{_count(trials, 'trial')}; all must pass.",
        "Outputs must have the reference's structure, shapes and dtypes, and be finite.",
        f"Values must satisfy abs(output - expected) <= atol + rtol * abs(expected), with {absolute}, rtol={rtol:g}.",
    ]
    if task_id == SOFTMAX:
        rules.append("Every row of the output must be nonnegative and sum to one.")
    if task_id == FROBENIUS:
        rules.append("The global L2 norm of the output must be one.")
    return rules


_WEIGHT_RULES = [
    "`Model` and `ModelNew` are each constructed under the same random seed, inside `torch.device(...)` of the target "
    "device. Create parameters in the same order as `Model` does and they come out equal.",
    "Where `ModelNew`'s parameter names and shapes equal `Model`'s, changed weights are loaded with "
    "`load_state_dict(strict=True)` before the first `forward`. So do not precompute from weights in `__init__` under "
    "the same names: pack them in the first `forward`, or use other parameter names.",
    "Both modules stay in train mode; if the reference uses dropout with p > 0, both are in eval mode.",
]


def _timing_rules(evaluator: Evaluator, compile_timeout_s: float, run_timeout_s: float) -> list[str]:
    limits = (
        f"Limits: {compile_timeout_s:g} s to import, construct and compile, {run_timeout_s:g} s for one "
        "call of `forward` (the first may take 30 s more, to compile Triton kernels)."
    )
    if evaluator == "mock":
        return ["Times are made up from the source text. They are not measurements.", limits]
    rules = ["Every timed call gets inputs with new values, and its output is checked: caching results loses."]
    if evaluator == "gpu":
        rules.append(
            "Your time is the median over fresh inputs, each with a cold L2 cache. It is compared with eager PyTorch "
            "under the default TF32 flags (off for matmul, on for cuDNN convolution). You may use TF32."
        )
    else:
        rules.append("Your time is the median over fresh inputs, compared with eager PyTorch on the same CPU.")
    return [*rules, limits]


def _reward_rules(reward: Literal["speedup", "roofline"], evaluator: Evaluator) -> list[str]:
    if reward == "roofline":
        speed = "0.3 + 2.7 * min(t_min / t_new, 1), where t_min is the hardware's floor for this task"
    else:
        speed = "0.3 + clamp(log2(t_ref / t_new), -0.2, 3.0)"
    rules = [f"Each submission gets 0 unless it is correct, else {speed}."]
    if evaluator == "gpu":
        rules.append("A time below what the hardware allows for this task is rejected and scores 0.")
    return rules
