"""Makes text from outside safe to send and to log: bounded, valid UTF-8, without server paths. Touches nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A lone surrogate cannot be encoded as UTF-8 and ends an OpenEnv session; NUL is refused by many JSON consumers.
_UNSAFE = re.compile("[\ud800-\udfff\x00]")
_REPLACEMENT = "\ufffd"


def _marker(cut: int) -> str:
    return f"\n[... {cut} characters cut ...]\n"


def bound(text: str, limit: int = 4000) -> str:
    """At most ``limit`` characters of ``text``, encodable as UTF-8 and without NUL.

    The cut is made in the middle, because a compiler's first error is at the head and Python's exception at the tail,
    and is marked with the number of characters left out. A limit too small for the marker keeps the head only.
    Surrogates and NUL become U+FFFD.
    """
    if len(text) > limit:
        room = limit - len(_marker(len(text)))
        if room > 0:
            head = (room + 1) // 2
            tail = room - head
            text = text[:head] + _marker(len(text) - room) + text[len(text) - tail :]
        else:
            text = text[: max(limit, 0)]
    return _UNSAFE.sub(_REPLACEMENT, text)


def scrub_paths(text: str, replacements: Mapping[str, str]) -> str:
    """``text`` with each path in ``replacements`` replaced by its placeholder.

    The longest path wins where one contains another, and placeholders are not searched again. Empty paths are ignored.
    """
    paths = sorted((path for path in replacements if path), key=len, reverse=True)
    if not paths:
        return text
    pattern = "|".join(re.escape(path) for path in paths)
    return re.sub(pattern, lambda match: replacements[match.group()], text)
