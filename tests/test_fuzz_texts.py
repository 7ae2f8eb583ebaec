"""Arbitrary sources through the static checks and arbitrary tasks through the prompt: bounded, and nothing raises."""

from __future__ import annotations

import asyncio
import io
import random
import re

import pytest
from conftest import make_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_env.models import Outcome, Stage
from server import submission
from server.eval_log import EvalLog
from server.mock_evaluator import MockEvaluator
from server.prompts import Language, problem_text
from server.scoring import MAX_FEEDBACK_CHARS
from server.static_checks import MAX_CODE_BYTES, Rule, check
from server.static_work import MAX_WORK, Work
from server.tasks import TaskSource
from tests import static_bad, static_honest

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)  # lone surrogates and NUL too
LANGUAGES = st.sampled_from(["triton", "cuda"])
KERNELS = [*static_honest.TRITON.values(), *static_honest.CUDA.values(), *static_honest.CPU.values()]
KERNELS += [code for _, code in (*static_bad.TRITON.values(), *static_bad.CUDA.values())]

quick = settings(max_examples=150, derandomize=True, database=None, deadline=None)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A kernel after a few edits: tokens deleted, doubled, swapped, or taken from another kernel; or much of it."""
    parts = re.findall(r"\w+|\s+|.", draw(st.sampled_from(KERNELS)))
    other = re.findall(r"\w+|\s+|.", draw(st.sampled_from(KERNELS)))
    chance = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, 8))):
        place = chance.randrange(len(parts))
        end = min(len(parts), place + chance.randrange(1, 9))
        match chance.randrange(5):
            case 0 if len(parts) > 20:
                del parts[place:end]
            case 1:
                parts[place:place] = parts[place:end]
            case 2:
                parts[place:end] = reversed(parts[place:end])
            case 3:
                start = chance.randrange(len(other))
                parts[place:end] = other[start : start + 9]
            case _:
                parts[place] = draw(ANY_TEXT)
    return "".join(parts) * draw(st.sampled_from([1, 1, 1, 20]))


@quick
@given(code=ANY_TEXT | mutated(), language=LANGUAGES, cpu=st.booleans())
def test_any_source_is_checked_within_the_budget(code: str, language: Language, cpu: bool) -> None:
    work = Work()
    found = check(code, language, cpu, work)
    assert work.done <= MAX_WORK + MAX_CODE_BYTES
    assert all(isinstance(violation.rule, Rule) and len(violation.message) < 1000 for violation in found)
    assert check(code, language, cpu) == found


@pytest.fixture(scope="module")
def services() -> submission.Services:
    """What judging needs, with the mock evaluator."""
    return submission.Services(make_settings(), MockEvaluator(), TaskSource.builtin(), EvalLog(None, io.StringIO()))


@quick
@given(code=ANY_TEXT | mutated(), language=LANGUAGES)
def test_any_source_gets_a_verdict_with_bounded_feedback(
    services: submission.Services, code: str, language: Language
) -> None:
    score = asyncio.run(submission.judge(services, services.tasks.get("level1/23_Softmax"), language, code, 60.0)).score
    assert score.uses_turn and score.reward is not None and 0 <= score.reward <= 3.3
    assert score.fields["stage"] in (Stage.STATIC, Stage.SCORED)
    assert isinstance(score.fields["outcome"], Outcome)
    assert len(score.fields["feedback"]) <= MAX_FEEDBACK_CHARS
    score.fields["feedback"].encode()


SOURCES = st.text(st.characters(exclude_categories=("Cs",)), max_size=300) | st.lists(
    st.sampled_from(["```", "````", "```python", "x = 1", "", "~~~", "  ```", "`"]), max_size=12
).map("\n".join)


@quick
@given(
    source=SOURCES,
    language=LANGUAGES,
    evaluator=st.sampled_from(["gpu", "cpu", "mock"]),
    gpu_name=st.none() | st.text(max_size=40),
    numbers=st.tuples(*[st.floats(0, 1e6)] * 4),
    turns=st.integers(1, 10**6),
    reward=st.sampled_from(["speedup", "roofline"]),
    small=st.booleans(),
)
def test_any_task_makes_a_prompt_that_holds_its_source_and_ends_it(
    source: str, language: Language, evaluator: str, gpu_name: str | None, numbers: tuple[float, ...], turns: int,
    reward: str, small: bool
) -> None:  # fmt: skip
    arguments: dict[str, object] = {
        "task_id": "level1/40_LayerNorm",
        "language": language,
        "evaluator": evaluator,
        "gpu_name": gpu_name,
        "max_turns": turns,
        "atol": numbers[0],
        "rtol": numbers[1],
        "extra_inputs": [],
        "compile_timeout_s": numbers[2],
        "run_timeout_s": numbers[3],
        "reward": reward,
        "small": small,
    }
    problem = problem_text(source=source, **arguments)  # pyright: ignore[reportArgumentType]
    problem.encode()
    before, _, rest = problem.partition("Reference:\n\n")
    opening, _, rest = rest.partition("\n")
    fence = opening.removesuffix("python")
    # As Markdown reads it: the block ends at the first line that is its fence.
    inside, after = re.split(rf"^{fence}$", rest, maxsplit=1, flags=re.MULTILINE)
    assert inside.removesuffix("\n") == source.rstrip()
    # What comes around it does not depend on it.
    plain = problem_text(source="pass", **arguments)  # pyright: ignore[reportArgumentType]
    assert plain == f"{before}Reference:\n\n```python\npass\n```{after}"
    for number in (*numbers, turns):
        assert f"{number:g}" in problem or f"{number}" in problem
