"""Strings that a submission builds from constants: literals, names, `+`, f-strings, join.

Reads parsed expressions and runs nothing; the work and the size of the result are bounded.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from server.static_work import Work

_CHARACTERS_A_STEP = 64


@dataclass(frozen=True)
class Text:
    """A constant string, with the Python lines that it came from."""

    text: str
    starts: tuple[int, ...]
    lines: tuple[tuple[int, bool], ...]
    """For each piece: its first line, and whether lines of the text are lines of the file."""

    def line_at(self, offset: int) -> int:
        piece = bisect_right(self.starts, offset) - 1
        line, exact = self.lines[piece]
        return line + self.text.count("\n", self.starts[piece], offset) if exact else line


def read_text(
    node: ast.expr,
    follow: Callable[[ast.expr], object],
    source_lines: list[str],
    work: Work,
    max_pieces: int,
    max_size: int,
) -> Text | None:
    """The string an expression certainly evaluates to, or None, also for one of too many pieces or characters.

    `follow` says what a name stands for. strip and dedent are read as doing nothing: space at the ends and indentation
    decide nothing in C++, and so the text keeps its lines.
    """
    pieces: list[tuple[str, int, bool]] = []
    pending: list[ast.expr] = [node]
    size = steps = 0
    while pending:
        if steps + len(pending) > max_pieces:  # each of them takes a step
            return None
        steps += 1
        work.spend()
        node = pending.pop()
        match node:
            case ast.Constant(value=str(value)):
                size += len(value)
                if size > max_size:
                    return None
                work.spend(len(value) // _CHARACTERS_A_STEP)
                pieces.append((value, *_position(node, value, source_lines)))
            case ast.Constant(value=int() | float() as value):
                if abs(value) > 2**63:
                    return None
                pieces.append((str(value), node.lineno, False))
            case ast.BinOp(op=ast.Add()):
                pending += [node.right, node.left]
            case ast.JoinedStr():
                pending += reversed(node.values[: max_pieces + 1])
            case ast.FormattedValue(conversion=-1, format_spec=None):
                pending.append(node.value)
            case ast.Call(func=ast.Attribute(attr="join", value=glue), args=[ast.List() | ast.Tuple() as parts]):
                for index, part in enumerate(reversed(parts.elts[: max_pieces + 1])):
                    pending += [glue, part] if index else [part]
            case ast.Call(func=ast.Attribute(attr="strip" | "lstrip" | "rstrip", value=inner), args=[]):
                pending.append(inner)
            case ast.Call(args=[inner]) if follow(node.func) in ("textwrap.dedent", "inspect.cleandoc"):
                pending.append(inner)
            case _:
                value = follow(node)
                if value is node or not isinstance(value, ast.expr):
                    return None
                pending.append(value)
    starts, offset = [], 0
    for value, _, _ in pieces:
        starts.append(offset)
        offset += len(value)
    return Text("".join(piece[0] for piece in pieces), tuple(starts), tuple(piece[1:] for piece in pieces))


def _position(node: ast.Constant, value: str, source_lines: list[str]) -> tuple[int, bool]:
    """The line where a literal's text starts, and whether lines of the text are lines of the file."""
    spanned = (node.end_lineno or node.lineno) - node.lineno
    breaks = value.count("\n")
    if spanned == breaks + 1 and source_lines[node.lineno - 1].rstrip().endswith("\\"):
        return node.lineno + 1, True
    return node.lineno, spanned == breaks
