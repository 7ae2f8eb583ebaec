"""C++ and CUDA sources inside a submission: a tokeniser and the rules that work on its tokens.

Pure functions over text; nothing is compiled. The tokeniser follows C++'s translation phases where they decide what is
code: spliced lines, comments, raw strings, `#if 0`, macros. So a comment or a string can neither hide nor fake
anything. Where the preprocessor's answer is not known, code counts as a kernel but never as a violation.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from server.static_rules import (
    COMPUTE,
    CPP_METHODS,
    CPP_NAMESPACES,
    LIBRARY_FUNCTIONS,
    LIBRARY_HEADERS,
    NN_COMPUTE,
    Rule,
    Violation,
    canonical,
    clip,
)
from server.static_work import Work

_SPLICE = re.compile(r"\\[ \t\v\f\r]*\n")
_RAW_PREFIX = re.compile(r'(?:u8|[uUL])?R"')
_RAW_OPEN = re.compile(r'([^()\\\s"]{0,16})\(')
_TOKEN = re.compile(
    r"""
    (?P<newline>\n)
  | (?P<space>[^\S\n]+)
  | (?P<comment>//[^\n]* | /\*.*?(?:\*/|\Z))
  | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]++|\\.)*+")
  | (?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
  | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]++|\\.)++')
  | (?P<name>[^\W\d][\w$]*)
  | (?P<punct><<<|>>>|::|->|%:|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DEAD, _MAYBE, _LIVE = 0, 1, 2
_UNCLOSED = {quote: re.compile(rf"{quote}(?:[^{quote}\\\n]++|\\.)*+", re.DOTALL) for quote in "\"'"}
_LAUNCHERS = ("cudaLaunch", "cuLaunch", "hipLaunch")
_MAX_ALIASED = 16  # parts of the namespace that an alias stands for
_KEYWORDS = frozenset("return else case throw new delete do co_return co_await co_yield".split())
_NOT_FUNCTIONS = frozenset(
    "if for while switch catch sizeof decltype alignas PYBIND11_MODULE TORCH_LIBRARY TORCH_LIBRARY_FRAGMENT "
    "TORCH_LIBRARY_IMPL STABLE_TORCH_LIBRARY STABLE_TORCH_LIBRARY_IMPL".split()
)


class Token(NamedTuple):
    kind: str
    text: str
    offset: int
    """Where it starts in the source, before lines were spliced."""
    state: int = _LIVE


def tokenize(source: str) -> Iterator[Token]:
    """All tokens of a source, newlines included, comments and spaces left out. Never raises."""
    kept: list[str] = []
    spliced_at, source_at = [0], [0]  # equal steps: position after splicing, position in the source
    end = length = 0
    for splice in _SPLICE.finditer(source):
        kept.append(source[end : splice.start()])
        length += splice.start() - end
        end = splice.end()
        spliced_at.append(length)
        source_at.append(end)
    kept.append(source[end:])
    text = "".join(kept)

    def origin(position: int) -> int:
        step = bisect_right(spliced_at, position) - 1
        return source_at[step] + position - spliced_at[step]

    position = 0
    unclosed_to = {'"': 0, "'": 0}  # quotes before it open nothing either: the first one's reading escaped them
    while position < len(text):
        offset = origin(position)
        raw = _RAW_PREFIX.match(text, position)
        opened = _RAW_OPEN.match(source, origin(raw.end() - 1) + 1) if raw else None
        if opened:  # splices do not count inside a raw string: find its end in the source itself
            close = ")" + opened[1] + '"'
            found = source.find(close, opened.end())
            stop = len(source) if found < 0 else found + len(close)
            yield Token("string", '""', offset)
            step = bisect_right(source_at, stop) - 1
            position = spliced_at[step] + stop - source_at[step]
            continue
        character = text[position]
        if position < unclosed_to.get(character, 0):
            yield Token("punct", character, offset)
            position += 1
            continue
        match = _TOKEN.match(text, position)
        assert match is not None and match.lastgroup is not None  # the last alternative takes any character
        if match[0] in unclosed_to and (unclosed := _UNCLOSED[match[0]].match(text, position)):
            unclosed_to[match[0]] = unclosed.end()
        position = match.end()
        if match.lastgroup not in ("space", "comment"):
            yield Token(match.lastgroup, "#" if match[0] == "%:" else match[0], offset)


@dataclass
class _Conditional:
    """One #if with its #elif and #else: the state around it, the best branch so far and the current one."""

    outer: int
    best: int
    state: int

    def next_branch(self, condition: int) -> None:
        limit = {_LIVE: _DEAD, _MAYBE: _MAYBE, _DEAD: _LIVE}[self.best]
        self.state = min(condition, limit)
        self.best = max(self.best, condition)


@dataclass
class Unit:
    """What is left of a source after the preprocessor."""

    tokens: list[Token] = field(default_factory=list)
    includes: list[Token] = field(default_factory=list)


def preprocess(source: str, work: Work) -> Unit:
    """Tokens without those in dead branches, followed by the bodies of the macros that the tokens use."""
    unit = Unit()
    macros: dict[str, list[Token]] = {}
    stack: list[_Conditional] = []
    state = _LIVE
    line: list[Token] = []
    for token in chain(tokenize(source), [Token("newline", "\n", len(source))]):
        work.spend()
        if token.kind != "newline":
            line.append(token)
            continue
        if line and line[0].text == "#":
            _directive(line[1:], state, stack, macros, unit)
            state = min(stack[-1].outer, stack[-1].state) if stack else _LIVE
        elif state != _DEAD:
            unit.tokens += [token._replace(state=state) for token in line] if state != _LIVE else line
        line = []
    index = 0
    while index < len(unit.tokens):  # grows: a macro's body may use further macros, each is appended once
        token = unit.tokens[index]
        index += 1
        if token.kind == "name" and (body := macros.pop(token.text, None)):
            unit.tokens += [Token("punct", "\n", body[0].offset), *body]
    work.spend(4 * len(unit.tokens))  # what the rules go through
    return unit


def _directive(
    line: list[Token], state: int, stack: list[_Conditional], macros: dict[str, list[Token]], unit: Unit
) -> None:
    name, rest = (line[0].text, line[1:]) if line else ("", [])
    if name in ("if", "ifdef", "ifndef"):
        condition = _condition(rest) if name == "if" else _MAYBE
        stack.append(_Conditional(state, condition, condition))
    elif name in ("elif", "elifdef", "elifndef", "else") and stack:
        stack[-1].next_branch({"elif": _condition(rest), "else": _LIVE}.get(name, _MAYBE))
    elif name == "endif" and stack:
        stack.pop()
    elif state == _DEAD or not rest:
        return
    elif name == "define":
        macros.setdefault(rest[0].text, []).extend(token._replace(state=state) for token in rest[1:])
    elif name == "include":
        header = rest[0].text if rest[0].kind == "string" else "".join(token.text for token in rest)
        unit.includes.append(Token("header", header.strip('<>"'), rest[0].offset, state))


def _condition(tokens: list[Token]) -> int:
    if len(tokens) == 1 and tokens[0].text in ("0", "false"):
        return _DEAD
    return _LIVE if len(tokens) == 1 and tokens[0].text in ("1", "true") else _MAYBE


def _closings(tokens: list[Token]) -> dict[int, int]:
    """For each opening parenthesis, the index of the one that closes it."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.text == "(":
            opened.append(index)
        elif token.text == ")" and opened:
            pairs[opened.pop()] = index
    return pairs


def has_kernel(unit: Unit) -> bool:
    """Whether a `__global__` function is defined (a declaration that ends in `;` is not enough)."""
    tokens, closings = unit.tokens, _closings(unit.tokens)
    for start, token in enumerate(tokens):
        if token.text != "__global__":
            continue
        for index in range(start + 1, len(tokens)):
            before = tokens[index - 1]
            if tokens[index].text in (";", "{", "}", "__global__"):
                break
            if tokens[index].text == "(" and (before.kind == "name" or before.text == ">"):
                if before.text.startswith("__"):  # __launch_bounds__(256), __attribute__((...))
                    continue
                after = closings.get(index, len(tokens)) + 1
                if after >= len(tokens) or tokens[after].text != ";":
                    return True
                break
    return False


def has_launch(unit: Unit) -> bool:
    """Whether any kernel is launched, by `<<<` or by the runtime's launch functions."""
    return any(
        token.text == "<<<" or (token.kind == "name" and token.text.startswith(_LAUNCHERS) and "Kernel" in token.text)
        for token in unit.tokens
    )


def has_function(unit: Unit) -> bool:
    """Whether any function is defined."""
    tokens, closings = unit.tokens, _closings(unit.tokens)
    for index in range(1, len(tokens)):
        name = tokens[index - 1]
        if tokens[index].text == "(" and name.kind == "name" and name.text not in _NOT_FUNCTIONS:
            after = closings.get(index, len(tokens)) + 1
            if after < len(tokens) and tokens[after].text in ("{", "const", "noexcept", "->"):
                return True
    return False


def library_calls(unit: Unit) -> Iterator[tuple[int, Violation]]:
    """Uses of libraries that do the work for you, each with its offset in the source (`line` is not set)."""
    for include in unit.includes:
        base = include.text.rpartition("/")[2]
        if include.state == _LIVE and base.startswith(LIBRARY_HEADERS):
            yield include.offset, _violation(f"#include <{clip(include.text)}>")
    tokens = unit.tokens
    aliases: dict[str, list[str]] = {}
    own = {  # names that this source itself defines or calls as plain functions
        tokens[i].text
        for i in range(1, len(tokens) - 1)
        if tokens[i].kind == "name" and tokens[i + 1].text == "(" and tokens[i - 1].text not in (".", "->", "::")
    }
    index = 0
    while index < len(tokens):
        first = index
        index += 1
        if tokens[first].kind != "name" or tokens[first].text in _KEYWORDS:
            continue
        parts = [tokens[first].text]
        while index + 1 < len(tokens) and tokens[index].text == "::" and tokens[index + 1].kind == "name":
            parts.append(tokens[index + 1].text)
            index += 2
        before = tokens[first - 1].text if first else ""
        called = index < len(tokens) and tokens[index].text == "("
        if before == "=" and len(parts) <= _MAX_ALIASED and first >= 3 and tokens[first - 3].text == "namespace":
            aliases[tokens[first - 2].text] = parts
        parts = aliases.get(parts[0], parts[:1]) + parts[1:]
        if tokens[first].state != _LIVE:
            continue
        if before in (".", "->"):
            if len(parts) == 1 and called and parts[0] in CPP_METHODS and parts[0] not in own:
                yield tokens[first].offset, _violation(f".{parts[0]}()")
        elif called and len(parts) == 1 and parts[0].startswith(LIBRARY_FUNCTIONS):
            yield tokens[first].offset, _violation(clip(parts[0]) + "()")
        elif parts[0] in ("at", "torch") and _computes(parts[1:]):
            yield tokens[first].offset, _violation(clip("::".join(parts)))


def _computes(parts: list[str]) -> bool:
    if len(parts) >= 2 and parts[0] == "_ops":
        return canonical(parts[1]) in COMPUTE
    if not parts or not CPP_NAMESPACES.issuperset(parts[:-1]):
        return False
    if parts[0] == "nn" and parts[-1].removesuffix("Impl") in NN_COMPUTE:
        return True
    return canonical(parts[-1]) in COMPUTE or ("blas" in parts[:-1] and "gem" in parts[-1])


def _violation(what: str) -> Violation:
    return Violation(Rule.LIBRARY_CALL, None, f"{what} lets a library do the work; compute it in your own kernel")
