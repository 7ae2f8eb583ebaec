"""Which names preprocessed headers declare where the code that includes them could use them. Pure text work.

By these the kit (extension_build.py) knows which errors of its light headers the full ones would not cure. Names that
are none cost a second try at most, so what looks like a declaration counts; class members and parameters do not.
"""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"^#.*$|operator\s*\"\"\s*\w+|\btemplate\s*<(?:[^<>;{}]|<(?:[^<>;{}]|<[^<>;{}]*>)*>)*>", re.MULTILINE
)
_FRIEND = re.compile(r"\bfriend\b[^;{(]*")
_TOKEN = re.compile(
    r"""(?:::\s*)?[A-Za-z_]\w*|R"([^(\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'"""
    r"""|\.?\d[\w.']*|::|[{}();:=,]""",
    re.DOTALL,
)
# Of c10: a symbol for every argument of every operator. Nobody uses them without their namespace.
_SYMBOLS = {"attr", "aten", "prim", "onnx", "namespaces", "_keys"}


def macros(text: str) -> set[str]:
    """The macros that `text`, preprocessed with -dD, defines."""
    return set(re.findall(r"^#define (\w+)", text, re.MULTILINE))


def declared(text: str) -> set[str]:
    """The names of namespaces' members and unscoped enumerators in `text`, and more."""
    text = _NOISE.sub(" ", text)
    found = {name for friend in _FRIEND.findall(text) for name in re.findall(r"\w+", friend)}
    hidden = parentheses = 0
    value = enumerators = False
    head: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if hidden:
            hidden += (token == "{") - (token == "}")
            if hidden:
                continue
            head, parentheses, value = [], 0, False
        elif token in "{};":
            if token == "{" and not _is_transparent(head):
                hidden = 1
                continue
            enumerators = token == "{" and "enum" in head
            head, parentheses, value = [], 0, False
        elif token in "()":
            parentheses += 1 if token == "(" else -1
            head.append(token)
        elif token in ":=":
            value = token == "=" or "enum" not in head
        elif token == ",":
            value = value and not enumerators
        else:
            head.append(token)
            if not parentheses and not value and (token[0].isalpha() or token[0] == "_"):
                found.add(token)
    return found


def _is_transparent(head: list[str]) -> bool:
    """Whether what is declared in the braces after `head` can be used outside of them."""
    if "enum" in head[:3]:
        return not {"class", "struct"} & set(head)
    if "namespace" in head[:2]:
        return not _SYMBOLS & set(head)
    return len(head) == 2 and head[0] == "extern" and head[1][0] == '"'
