"""What the static checks cost: work grows with the source, never with its square, and a limit ends what asks for more.

Steps are counted, not seconds. Each family would cost the square of its size to checks that look things up again.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import make_settings

from kernel_env.models import InfraCode, Outcome, Stage
from server import static_checks, submission
from server.eval_log import EvalLog
from server.mock_evaluator import MockEvaluator
from server.static_checks import MAX_CODE_BYTES, Language, Rule, check, feedback, outcome
from server.static_cpp import tokenize
from server.static_work import MAX_WORK, TooComplexError, Work
from server.tasks import TaskSource
from tests import static_honest

Family = Callable[[int], str]
ROOT = Path(__file__).parent.parent
EXAMPLES = [path for path in (ROOT / "examples").rglob("*.py") if "class ModelNew" in path.read_text()]
IMPORTS = "import torch\nimport torch.nn as nn\nimport triton\n"


def lines(count: int, line: str) -> str:
    """`line` with `#` replaced by 0, 1, ... and `+` by 1, 2, ...: a name and the next one."""
    return "".join(line.replace("#", str(i)).replace("+", str(i + 1)) + "\n" for i in range(count))


def forward(before: str, body: str) -> str:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{IMPORTS}{before}\nclass ModelNew(nn.Module):\n    def forward(self, x, *rest):\n        pass\n{indented}"


def method(before: str, body: str, bases: str = "object") -> str:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{before}\nclass A({bases}):\n    def f(self):\n        pass\n{indented}"


KERNEL = "__global__ void k() {}\n"
LATTICE = "".join(f"class C{i}({', '.join(f'C{j}' for j in range(i))}): pass\n" for i in range(40))
ARGUMENTS = ", ".join(f"a{i}" for i in range(2_000))

PYTHON: dict[str, Family] = {
    "functions_that_call_each_other": lambda n: forward(lines(n, "def f#(): return f+()"), "f0()"),
    "aliases_of_aliases": lambda n: "a0 = 1\n" + lines(n, "a+ = a#"),
    "aliases_defined_backwards": lambda n: "\n".join(reversed(lines(n, "a# = a+").splitlines())),
    "classes_that_inherit_from_each_other": lambda n: lines(n, "class C+(C#): x = C#.y"),
    "nested_classes": lambda n: (
        "".join(" " * i + f"class C{i}:\n" for i in range(90)) + "".join(" " * 90 + f"a{i}\n" for i in range(n))
    ),
    "many_unknown_bases": lambda n: f"class A({'b, ' * n}): pass\na = A()\n" + "a.x\n" * n,
    "many_known_bases": lambda n: (
        lines(n, "class B#: pass") + f"class A({', '.join(f'B{i}' for i in range(n))}): pass\n" + lines(n, "A().x#")
    ),
    "many_layers_as_bases": lambda n: forward(f"class A({'nn.X, ' * n}): pass\na = A()", "a(x)\n" * n),
    "classes_below_a_wide_one": lambda n: forward(
        f"class B0({'nn.X, ' * n}): pass\n" + lines(n, "class B+(B0): pass"), lines(n, "B#()(x)")
    ),
    "super_of_many_bases": lambda n: method("class B: pass", "super().x\n" * n, "B, " * n),
    "super_of_a_lattice": lambda n: method(LATTICE, lines(n, "super().x#"), "C39, C38, C37"),
    "attribute_stored_often": lambda n: method("", "self.x = 1\n" * n + "self.x\n" * n),
    "attributes_of_attributes": lambda n: method("", lines(n, "self.x# = self.x+.y")),
    "constructor_bound_often": lambda n: forward("class A:\n" + "    __init__ = f\n" * n, "A()\n" * n),
    "many_arguments_of_forward": lambda n: (
        f"class ModelNew:\n    def forward(self, {ARGUMENTS[: 6 * n]}):\n        pass\n" + lines(n, "        a#.sum()")
    ),
    "tensors_of_tensors": lambda n: forward("", lines(n, "a+ = a#; a#.sum()")),
    "tensors_of_tensors_backwards": lambda n: forward(
        "", "\n".join(reversed(lines(n, "a# = a+; a#.sum()").splitlines()))
    ),
    "tensors_bound_eight_times": lambda n: forward("", lines(n, "a# = a+\n" * 8) + lines(n, "a#.sum()")),
    "wide_sequential": lambda n: forward(f"s = nn.Sequential({'a, ' * n})", "s(x)\n" * n),
    "wide_decorator": lambda n: "def d():\n" + "    a\n" * n + "@d\ndef f(): pass\n" * n,
    "wide_decorator_call": lambda n: "def d():\n" + "    a\n" * n + "@d()\ndef f(): pass\n" * n,
    "many_decorators": lambda n: lines(n, "@d#") + "def f(): pass\n",
    "wide_kernel_by_hand": lambda n: f"{IMPORTS}k = triton.jit(f, {'a, ' * n})\n" + "k\n" * n,
    "huge_fstring": lambda n: f"{IMPORTS}a = 'b'\nF = f'{'{a}' * n}'\n" + "getattr(torch, F)\n" * n,
    "huge_join": lambda n: f"{IMPORTS}a = 'b'\nF = ''.join([{'a, ' * n}])\n" + "getattr(torch, F)\n" * n,
    "huge_text_as_a_name": lambda n: f"F = '{'a' * 100 * n}'\n" + "__import__(F + F)\n" * n,
    "huge_dict": lambda n: f"x = {{{'1: a, ' * n}}}\n",
    "lambdas_in_lambdas": lambda n: "x = " + "lambda b: " * 150 + "[" + ", ".join(f"a{i}" for i in range(n)) + "]\n",
    "long_attribute_chains": lambda n: ("a" + ".b" * 90 + "\n") * (n // 40),
    "nonlocal_names": lambda n: (
        "".join(" " * i + f"def f{i}():\n" for i in range(90))
        + " " * 90
        + ("nonlocal " + ", ".join(f"a{i}" for i in range(n)))
    ),
    "many_imports": lambda n: lines(n, "import m#") + lines(n, "from m# import a as b#"),
}
CPP: dict[str, Family] = {
    "braces": lambda n: "{}" * n,
    "open_parentheses": lambda n: "f(" * n,
    "comments": lambda n: "/* { */ // {\n" * n,
    "kernels_without_bodies": lambda n: "__global__ f(" * n,
    "macros_of_macros": lambda n: lines(n, "/define a# a+").replace("/", "#") + "a0",
    "macro_defined_often": lambda n: "#define a a a\n" * n + "a\n" * n,
    "conditionals": lambda n: "#if X\n" * n + "#elif Y\n" * n,
    "namespaces": lambda n: "at::" * n,
}
LOADERS: dict[str, Family] = {
    "sources_in_pieces": lambda n: (
        f"S = {' + '.join(['T'] * 10)}\nT = {' + '.join([repr('a')] * 10)}\n"
        + f"load_inline('k', cuda_sources=[{', '.join(['S + S'] * 60)}])\n" * (n // 8)
    ),
    "many_loaders": lambda n: "load_inline('k', cuda_sources='a')\n" * n,
}


def loaded(source: str) -> str:
    return static_honest.cuda("cuda_sources=SOURCE", f"SOURCE = r'''{source}\n'''")


def load_inline(code: str) -> str:
    return f"from torch.utils.cpp_extension import load_inline\n{code}"


FAMILIES: dict[str, tuple[Language, Family]] = {
    **{name: ("triton", family) for name, family in PYTHON.items()},
    **{f"cpp_{name}": ("cuda", lambda n, family=family: loaded(family(n))) for name, family in CPP.items()},
    **{name: ("cuda", lambda n, family=family: load_inline(family(n))) for name, family in LOADERS.items()},
}


def work_of(code: str, language: Language) -> int:
    work = Work()
    found = check(code, language, work=work)
    assert not {violation.rule for violation in found} & {Rule.SYNTAX, Rule.TOO_COMPLEX}
    return work.done


@pytest.mark.parametrize("name", FAMILIES)
def test_twice_the_source_is_twice_the_work(name: str) -> None:
    language, family = FAMILIES[name]
    code, twice = family(600), family(1200)
    assert len(twice) < 2.5 * len(code)
    once = work_of(code, language)
    assert once > 100
    assert work_of(twice, language) <= 2.5 * once


@pytest.mark.parametrize(
    "source",
    ['"' + r"\"" * 100_000, "'" + r"\'" * 100_000, "u8" + '"' + r"\"" * 100_000, "cudaLaunch" + "Kernel" * 35_000 + "$"]
    + ["namespace a = b" + "::c" * 30_000 + ";" + "a " * 60_000],
    ids=["quotes", "characters", "prefixed_quotes", "launch_names", "aliases"],
)
def test_hostile_cpp_is_read_once(source: str) -> None:
    """Each of these took minutes or longer when a part of it was read again from every position."""
    assert not {violation.rule for violation in check(loaded(KERNEL + source), "cuda")} - {Rule.NOT_LAUNCHED}


def test_an_unclosed_quote_opens_nothing() -> None:
    texts = [token.text for token in tokenize(r'a "b \" c \" at' + '\n\'d \\\' e\' "f" u"g\n"h"')]
    first = ["a", '"', "b", "\\", '"', "c", "\\", '"', "at", "\n"]
    assert texts == [*first, r"'d \' e'", '"f"', "u", '"', "g", "\n", '"h"']


@pytest.mark.parametrize(
    "statement", ["import {}", "import {} as a", "from {} import a, b", "from {} import *"], ids=lambda s: s[:14]
)
def test_hostile_import_names_are_refused_before_the_parser_sees_them(statement: str) -> None:
    """The parser keeps every prefix of an import's dotted name: 128 KB of it cost gigabytes."""
    for dotted in ("a" + ".a" * 60_000, "a" + " . \\\n a" * 30_000):
        assert [violation.rule for violation in check(statement.format(dotted), "triton")] == [Rule.TOO_COMPLEX]


def test_names_used_often_are_kept_short() -> None:
    """50 000 names from a module with a name of 100 KB were 5 GB."""
    code = f"from {'.' * 100_000} import {'a, ' * 40_000} a\n"
    assert {violation.rule for violation in check(code, "triton")} == {Rule.MISSING_MODEL, Rule.NO_KERNEL}


def test_the_limit_ends_a_source_that_asks_for_more() -> None:
    code = LATTICE + lines(9_000, "class D#(C39):0\nD#.x")
    assert len(code) < MAX_CODE_BYTES
    work = Work()
    found = check(code, "triton", work=work)
    assert [violation.rule for violation in found] == [Rule.TOO_COMPLEX]
    assert outcome(found) == "static_violation"
    assert feedback(found) == "too_complex: the source is too complex to check; make it shorter and simpler"
    assert MAX_WORK < work.done < MAX_WORK + MAX_CODE_BYTES


def test_scopes_too_deep_to_look_through_are_too_complex() -> None:
    assert [violation.rule for violation in check("x = " + "lambda: " * 300 + "0", "triton")] == [Rule.TOO_COMPLEX]


@pytest.mark.parametrize("limit", [0, 1, 10, 100, 300])
def test_the_same_source_always_gets_the_same_answer(limit: int) -> None:
    found = check(static_honest.PLAIN, "triton", work=Work(limit))
    assert [violation.rule for violation in found] == [Rule.TOO_COMPLEX]


def test_ordinary_sources_are_far_from_the_limit() -> None:
    samples: list[tuple[str, Language]] = [
        *((code, "triton") for code in static_honest.TRITON.values()),
        *((code, "cuda") for code in static_honest.CUDA.values()),
        *((path.read_text(), "triton") for path in EXAMPLES),
    ]
    for code, language in samples:
        work = Work()
        check(code, language, work=work)
        assert 0 < work.done < MAX_WORK / 100
    largest = static_honest.PLAIN * (MAX_CODE_BYTES // len(static_honest.PLAIN))
    assert work_of(largest, "triton") < MAX_WORK / 4


def services() -> submission.Services:
    return submission.Services(make_settings(), MockEvaluator(), TaskSource.builtin(), EvalLog(None, io.StringIO()))


def judged() -> submission.Judged:
    shared = services()
    task = shared.tasks.get("level1/23_Softmax")
    return asyncio.run(submission.judge(shared, task, "triton", "x = " + "lambda: " * 300 + "0", 60.0))


def test_too_complex_is_the_submissions_own_doing() -> None:
    score = judged().score
    assert (score.fields["stage"], score.fields["outcome"]) == (Stage.STATIC, Outcome.STATIC_VIOLATION)
    assert score.reward == 0.0
    assert "too complex to check" in str(score.fields["feedback"])


def test_a_check_that_nobody_waits_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    test_over = threading.Event()

    def endless(code: str, language: Language, cpu: bool, work: Work) -> list[static_checks.Violation]:
        try:
            while not test_over.is_set():
                work.spend(0)
        except TooComplexError:
            ended.set()
        return []

    async def give_up() -> submission.Judged:
        shared = services()
        try:
            given_up = await submission.judge(shared, shared.tasks.get("level1/23_Softmax"), "triton", "code", 60.0)
            assert await asyncio.to_thread(ended.wait, 30.0)
        finally:
            test_over.set()
        return given_up

    monkeypatch.setattr(static_checks, "check", endless)
    monkeypatch.setattr(submission, "STATIC_TIMEOUT_S", 0.01)
    score = asyncio.run(give_up()).score
    assert (score.fields["stage"], score.fields["outcome"]) == (Stage.STATIC, Outcome.STATIC_VIOLATION)


def test_a_submission_that_nobody_had_time_to_look_at_is_not_to_blame() -> None:
    busy, over = threading.Event(), threading.Event()

    def occupy() -> None:
        busy.set()
        over.wait()

    async def starve() -> submission.Judged:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        occupied = loop.run_in_executor(None, occupy)
        while not busy.is_set():
            await asyncio.sleep(0)
        shared = services()
        task = shared.tasks.get("level1/23_Softmax")
        try:
            return await submission.judge(shared, task, "triton", "code", deadline_s=0.01)
        finally:
            over.set()
            await occupied

    score = asyncio.run(starve()).score
    assert (score.reward, score.fields["infra_code"]) == (None, InfraCode.STEP_DEADLINE)
