"""Static checks of a submission: fast feedback and telemetry, not the defence.

`check` parses the source (Python's ast, and a C++ tokeniser for sources given to load_inline) and returns the rules it
breaks. It accepts whatever it cannot see with certainty, never runs or imports submitted code, never raises, and needs
neither torch nor openenv. Crashes, exits, endless loops and output floods are left to the evaluator, which has an
outcome for each.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal

from server import static_cpp
from server.static_names import Module
from server.static_python import check_forward, check_model, check_names, check_stores, check_triton
from server.static_rules import Rule, Violation, clip
from server.static_submission import Submission
from server.static_text import Text
from server.static_work import TooComplexError, Work

__all__ = ["Language", "Rule", "Violation", "check", "feedback", "outcome"]

Language = Literal["triton", "cuda"]
MAX_CODE_BYTES = 256_000
MAX_FEEDBACK_CHARS = 4_000
_MAX_SOURCES = 64
_MAX_TEXTS = 200  # of all calls together
_MAX_REPORTED = 100  # a source, of calls into libraries
_EXTENSION = "torch.utils.cpp_extension."
_MAX_DOTS = 1_000
_DOTTED = re.compile(r"[^\W\d]\w*+(?:[\s\\]*+\.[\s\\]*+[^\W\d]\w*+)*+")
_parse_lock = threading.Lock()


def check(code: str, language: Language, cpu: bool = False, work: Work | None = None) -> list[Violation]:
    """The rules that a submission breaks, ordered by line; an empty list accepts it.

    `cpu` is for the evaluator without CUDA, where language "cuda" means C++ in load_inline's `cpp_sources`.
    `work` counts the steps; whoever holds it can stop the check, which then says that the source is too complex.
    """
    try:
        found = list(_check(code, language, cpu, work if work is not None else Work()))
    except (RecursionError, MemoryError):
        found = [Violation(Rule.SYNTAX, None, "the source is nested too deeply to parse; simplify it")]
    except TooComplexError:
        found = [_too_complex()]
    unique = {(violation.rule, violation.line): violation for violation in reversed(found)}
    return sorted(unique.values(), key=lambda violation: (violation.line or 0, violation.rule.value))


def outcome(violations: list[Violation]) -> str:
    """The value of kernel_env.models.Outcome for a rejected submission (at least one violation)."""
    rules = {violation.rule for violation in violations}
    if Rule.SYNTAX in rules:
        return "syntax_error"
    if rules & {Rule.MISSING_MODEL, Rule.MISSING_FORWARD}:
        return "missing_model"
    return "static_violation"


def feedback(violations: list[Violation]) -> str:
    """One line a violation (rule, line, what to do), at most 4000 characters."""
    lines: list[str] = []
    room = MAX_FEEDBACK_CHARS - 40
    for violation in violations:
        where = f" (line {violation.line})" if violation.line is not None else ""
        line = f"{violation.rule.value}{where}: {violation.message}"
        if len(line) + 1 > room:
            lines.append(f"... and {len(violations) - len(lines)} more")
            break
        room -= len(line) + 1
        lines.append(line)
    return "\n".join(lines)


def _check(code: str, language: Language, cpu: bool, work: Work) -> Iterator[Violation]:
    if not code.strip():
        yield Violation(Rule.EMPTY, None, "the submission is empty; send Python source that defines class ModelNew")
        return
    if len(code) > MAX_CODE_BYTES or len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
        yield Violation(Rule.TOO_LARGE, None, f"the source is over {MAX_CODE_BYTES} bytes; shorten it")
        return
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads it, so that lines count alike
    tree = _parse(code)
    if isinstance(tree, Violation):
        yield tree
        return
    submission = Submission(Module(tree, code, work), cpu)
    yield from check_model(submission)
    yield from check_triton(submission) if language == "triton" else _check_extension(submission, cpu)
    yield from check_forward(submission)
    yield from check_names(submission)
    yield from check_stores(submission)


def _parse(code: str) -> ast.Module | Violation:
    for index, character in enumerate(code):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            kind = "a null byte" if character == "\0" else "a lone surrogate"
            return Violation(Rule.SYNTAX, code.count("\n", 0, index) + 1, f"the source contains {kind}; remove it")
    if any(dotted[0].count(".") > _MAX_DOTS for dotted in _DOTTED.finditer(code)):
        return _too_complex()  # imported, it would cost the parser the square of its length in memory
    try:
        with _parse_lock, warnings.catch_warnings():  # the lock: catch_warnings is not safe between threads
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        near = f", near: {clip(error.text.strip(), 80)}" if error.text and error.text.strip() else ""
        return Violation(Rule.SYNTAX, error.lineno, f"{clip(error.msg, 120)}{near}")
    except (ValueError, OverflowError) as error:
        return Violation(Rule.SYNTAX, None, f"Python cannot parse the source: {clip(str(error), 120)}")


def _too_complex() -> Violation:
    return Violation(Rule.TOO_COMPLEX, None, "the source is too complex to check; make it shorter and simpler")


# ---------------------------------------------------------------- load_inline


def _check_extension(submission: Submission, cpu: bool) -> Iterator[Violation]:
    """A load_inline (or load) call whose sources, as far as they are constants, hold a kernel that is launched."""
    module = submission.module
    loaders = (_EXTENSION + "load_inline", _EXTENSION + "load")
    calls: list[ast.Call] = []
    mentioned = False
    for _, node in submission.everything():
        if isinstance(node, ast.Call) and module.follow(node.func) in loaders:
            calls.append(node)
        elif isinstance(node, ast.Name | ast.Attribute) and module.follow(node) in loaders:
            mentioned = True
    if not calls:
        if not mentioned:
            message = "compile your kernel with torch.utils.cpp_extension.load_inline"
            yield Violation(Rule.NO_EXTENSION, None, message)
        return
    complete = len(calls) <= _MAX_SOURCES
    sources: dict[Text, None] = {}  # no two alike
    room = _MAX_TEXTS
    for call in calls[:_MAX_SOURCES]:
        texts, known = _sources(module, call, cpu, room)
        complete = complete and known and None not in texts
        room -= len(texts)
        sources |= dict.fromkeys(text for text in texts if text is not None)
        if sum(len(text.text) for text in sources) > MAX_CODE_BYTES:
            return
    units = [static_cpp.preprocess(text.text, module.work) for text in sources]
    for text, unit in zip(sources, units, strict=True):
        for offset, violation in islice(static_cpp.library_calls(unit), _MAX_REPORTED):
            yield replace(violation, line=text.line_at(offset))
    if not complete:
        return
    line = calls[0].lineno
    if cpu:
        if not any(static_cpp.has_function(unit) for unit in units):
            message = "this evaluator has no GPU: give load_inline cpp_sources that define your function in C++"
            yield Violation(Rule.NO_KERNEL, line, message)
    elif not any(static_cpp.has_kernel(unit) for unit in units):
        yield Violation(Rule.NO_KERNEL, line, "give load_inline cuda_sources that define a __global__ kernel")
    elif not any(static_cpp.has_launch(unit) for unit in units):
        yield Violation(Rule.NOT_LAUNCHED, line, "launch the kernel from C++: kernel<<<grid, block>>>(...)")


def _sources(module: Module, call: ast.Call, cpu: bool, room: int) -> tuple[list[Text | None], bool]:
    """The sources of one call, at most `room` (None: not constant), and whether they are all of its sources."""
    if module.follow(call.func) != _EXTENSION + "load_inline":
        return [], False  # load: the sources are files
    given: dict[str, ast.expr] = {}
    for name, argument in zip(("name", "cpp_sources", "cuda_sources"), call.args, strict=False):
        given[name] = argument
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    known = all(keyword.arg for keyword in call.keywords) and not any(isinstance(a, ast.Starred) for a in call.args)
    texts: list[Text | None] = []
    for name in ("cpp_sources",) if cpu else ("cpp_sources", "cuda_sources"):
        if name not in given:
            continue
        value = given[name]
        value = module.follow(value) if isinstance(value, ast.Name | ast.Attribute) else value
        if isinstance(value, ast.Constant) and value.value is None:
            continue
        parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [given[name]]
        most = min(_MAX_SOURCES, room - len(texts))
        known = known and len(parts) <= most
        texts += [module.text(part, max_pieces=5_000, max_size=MAX_CODE_BYTES) for part in parts[:most]]
    return texts, known
