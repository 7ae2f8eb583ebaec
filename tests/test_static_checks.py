"""The static checks: honest styles pass, tricks are rejected by rule and line, no text makes them raise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.static_checks import Language, Rule, Violation, check, feedback, outcome
from server.static_cpp import tokenize
from tests import static_bad, static_honest

ROOT = Path(__file__).parent.parent
Sample = tuple[str, Language, bool]

HONEST: dict[str, Sample] = {
    **{f"triton-{name}": (code, "triton", False) for name, code in static_honest.TRITON.items()},
    **{f"cuda-{name}": (code, "cuda", False) for name, code in static_honest.CUDA.items()},
    **{f"cpu-{name}": (code, "cuda", True) for name, code in static_honest.CPU.items()},
}
BAD: dict[str, tuple[str, Sample]] = {
    **{f"triton-{name}": (rule, (code, "triton", False)) for name, (rule, code) in static_bad.TRITON.items()},
    **{f"cuda-{name}": (rule, (code, "cuda", False)) for name, (rule, code) in static_bad.CUDA.items()},
    **{f"cpu-{name}": (rule, (code, "cuda", True)) for name, (rule, code) in static_bad.CPU.items()},
}
EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.py")) if "class ModelNew" in path.read_text()]
PARSED = [sample for sample in HONEST.values()] + [
    sample for rule, sample in BAD.values() if rule not in (Rule.SYNTAX, Rule.EMPTY, Rule.TOO_LARGE)
]


def rules(code: str, language: Language, cpu: bool = False) -> set[Rule]:
    return {violation.rule for violation in check(code, language, cpu)}


def marked_line(code: str) -> int | None:
    return next((number for number, line in enumerate(code.split("\n"), 1) if "HERE" in line), None)


@pytest.mark.parametrize("name", HONEST)
def test_honest_styles_pass(name: str) -> None:
    assert check(*HONEST[name]) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_pass(path: Path) -> None:
    code = path.read_text()
    language: Language = "cuda" if "load_inline" in code else "triton"
    assert check(code, language, cpu=language == "cuda" and "__global__" not in code) == []


@pytest.mark.parametrize("name", BAD)
def test_tricks_are_rejected_by_rule_and_line(name: str) -> None:
    rule, sample = BAD[name]
    found = check(*sample)
    assert {violation.rule for violation in found} == {rule}
    if (line := marked_line(sample[0])) is not None:
        assert found[0].line == line


def test_language_decides() -> None:
    assert check(static_honest.PLAIN, "triton") == []
    assert rules(static_honest.PLAIN, "cuda") == {Rule.NO_EXTENSION}
    assert Rule.NO_KERNEL in rules(static_honest.CUDA["raw_string"], "triton")
    assert rules(static_honest.CUDA["raw_string"], "cuda", cpu=True) == {Rule.NO_KERNEL}
    assert rules(static_honest.CPU["cpp_sources"], "cuda") == {Rule.NO_KERNEL}


def test_branches_without_a_gpu_run_on_the_cpu_evaluator() -> None:
    code = static_honest.TRITON["torch_only_where_there_is_no_gpu"]
    assert [violation.rule for violation in check(code, "triton", cpu=True)] == [Rule.TORCH_COMPUTE] * 3
    assert rules(code.replace("not x.is_cuda", "x.is_cuda"), "triton") == {Rule.TORCH_COMPUTE}


def test_several_violations_are_all_reported_in_order() -> None:
    found = check("import ctypes\nimport socket\nx = exec('')\n", "triton")
    assert [violation.rule for violation in found] == [
        Rule.MISSING_MODEL,
        Rule.NO_KERNEL,
        Rule.FORBIDDEN_IMPORT,
        Rule.FORBIDDEN_IMPORT,
        Rule.DYNAMIC_CODE,
    ]
    assert [violation.line for violation in found] == [None, None, 1, 2, 3]


def test_line_ends_count_as_python_counts_them() -> None:
    for end in ("\r\n", "\r"):
        code = static_bad.TRITON["matmul"][1]
        assert check(code.replace("\n", end), "triton") == check(code, "triton")
        code = static_bad.CUDA["macro"][1]
        assert check(code.replace("\n", end), "cuda") == check(code, "cuda")


def test_outcome() -> None:
    assert outcome(check("def f(:", "triton")) == "syntax_error"
    assert outcome(check("import ctypes", "triton")) == "missing_model"
    assert outcome(check(static_bad.TRITON["no_forward"][1], "triton")) == "missing_model"
    assert outcome(check(static_bad.TRITON["exec"][1], "triton")) == "static_violation"
    assert outcome(check("", "triton")) == "static_violation"


def test_feedback_names_rule_line_and_remedy() -> None:
    text = feedback(check(static_bad.TRITON["matmul"][1], "triton"))
    assert text == (
        f"torch_compute (line {marked_line(static_bad.TRITON['matmul'][1])}): "
        "torch.matmul computes with PyTorch on forward's path; do it in your kernel"
    )


def test_feedback_is_bounded_and_says_how_many_are_left_out() -> None:
    found = check("\n".join(["import ctypes"] * 500), "triton")
    text = feedback(found)
    assert len(text) <= 4000
    shown = text.split("\n")
    assert shown[-1] == f"... and {len(found) - len(shown) + 1} more"
    assert len(feedback([Violation(Rule.SYNTAX, 1, "x" * 10_000)])) <= 4000
    long_name = "a" * 5000
    assert len(feedback(check(static_bad.top(f"torch.{long_name} = 1"), "triton"))) < 300


def test_checks_need_neither_torch_nor_openenv() -> None:
    program = (
        "import sys, server.static_checks as s; s.check('import torch', 'triton');"
        "print([m for m in ('torch', 'triton', 'openenv', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "code",
    ["(" * 300, "x = " + "a." * 50_000 + "a", "x = a" + "()" * 50_000, "if a: pass\n" + "elif a: pass\n" * 20_000]
    + [
        "x = " + "lambda: " * 20_000 + "0",
        'f"{' * 300,
        "\ufeff\ufeff",
        "\x0c\x0b\x1a",
        "a = a.b\nb = b()\nclass A(A): pass",
    ],
    ids=range(9),
)
def test_hostile_nesting_does_not_raise(code: str) -> None:
    for language in ("triton", "cuda"):
        assert check(code, language)


def test_self_reference_ends() -> None:
    code = static_bad.forward(
        "y = a(x)", before="a = b\nb = a\nclass C(C):\n    x = y\n    y = x\nz = C().x.y\nS = S + S"
    )
    assert check(code, "triton") == []
    doubling = "S0 = 'aa'\n" + "".join(f"S{i} = S{i - 1} + S{i - 1}\n" for i in range(1, 60))
    assert check(static_honest.cuda("cuda_sources=S59", doubling), "cuda") == []


FRAGMENTS = st.sampled_from(
    "class ModelNew def forward self ( ) [ ] { } : = . , @ torch nn F matmul triton jit import from as lambda try "
    "except if False 0 return global nonlocal getattr setattr super exec * ** 'x' f\" \" \\ #".split(" ")
    + ["\n", "\n\t", "\n ", "\0", "\ud800"]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(), st.lists(FRAGMENTS, max_size=40).map(" ".join)),
    st.sampled_from(["triton", "cuda"]),
    st.booleans(),
)
def test_never_raises(code: str, language: Language, cpu: bool) -> None:
    found = check(code, language, cpu)
    assert found  # none of these is a submission
    assert len(feedback(found)) <= 4000
    assert outcome(found) in ("syntax_error", "missing_model", "static_violation")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PARSED), st.data())
def test_never_raises_on_damaged_submissions(sample: Sample, data: st.DataObject) -> None:
    code, language, cpu = sample
    start = data.draw(st.integers(0, len(code)))
    stop = data.draw(st.integers(start, min(len(code), start + 30)))
    damaged = code[:start] + data.draw(st.text(max_size=5) | FRAGMENTS) + code[stop:]
    feedback(check(damaged, language, cpu))


CPP_FRAGMENTS = st.sampled_from(
    '__global__ void k ( ) { } ; <<< >>> at :: matmul # if 0 else elif endif define X // /* */ " \' R"( )" R"d( '
    "include <cublas.h> \\ 1'0 .mm -> namespace = torch u8R\"x(".split(" ")
    + ["\n", "\\\n"]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(CPP_FRAGMENTS, max_size=40).map(" ".join)))
def test_cpp_tokens_are_in_order_and_nothing_raises(source: str) -> None:
    offsets = [token.offset for token in tokenize(source)]
    assert offsets == sorted(set(offsets))
    assert all(0 <= offset < len(source) for offset in offsets)
    sample = static_honest.cuda(f"cuda_sources={source!r}")
    check(sample, "cuda")
    check(sample.replace("cuda_sources", "cpp_sources"), "cuda", cpu=True)


NOISE = st.sampled_from(
    ["class ModelNew: pass", "torch.compile(x)", "x @ w; torch.matmul(x)", "@triton.jit", "k[(1,)](x)", "exec('')"]
    + [
        "import ctypes",
        "__global__ void k() { } k<<<1, 1>>>();",
        "at::matmul(a, b)",
        "#include <cublas_v2.h>",
        "*/ /*",
        "//",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PARSED), st.data())
def test_python_comments_and_strings_change_nothing(sample: Sample, data: st.DataObject) -> None:
    code, language, cpu = sample
    lines = code.split("\n")
    inside = False
    places = []  # lines of Python that open no string, at module level: a statement may stand before them
    for number, line in enumerate(lines):
        if not inside and (line.startswith(("class ", "import ", "def ")) and not lines[number - 1].startswith("@")):
            places.append(number)
        inside ^= (line.count('"""') + line.count("'''")) % 2 == 1
    place = data.draw(st.sampled_from(places))
    noise = data.draw(NOISE)
    added = data.draw(st.sampled_from([f"# {noise}", repr(noise), f"'''\n{noise}\n'''", f"_unused = {noise!r}"]))
    changed = "\n".join([*lines[:place], added, *lines[place:]])
    assert rules(changed, language, cpu) == rules(*sample)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_cpp_comments_and_strings_change_nothing(data: st.DataObject) -> None:
    names = [name for name, (rule, code) in static_bad.CUDA.items() if "SOURCE = r" in code] + ["raw_string"]
    name = data.draw(st.sampled_from(names))
    code = static_bad.CUDA[name][1] if name in static_bad.CUDA else static_honest.CUDA[name]
    before, _, rest = code.partition('SOURCE = r"""')
    source, _, after = rest.partition('\n"""')
    noise = data.draw(NOISE.filter(lambda text: "*/" not in text))
    added = data.draw(
        st.sampled_from(
            [f"// {noise}", f"/* {noise} */", f'auto u = "{noise}";', f'auto u = R"z({noise})" {noise})z";']
        )
    )
    changed = f'{before}SOURCE = r"""\n{added}\n{source}\n{added}\n"""{after}'
    assert rules(changed, "cuda") == rules(code, "cuda")
