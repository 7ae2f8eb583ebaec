"""What the property-based tests share: what no answer of a server may hold, and how long one may be."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECRET = "a-value-of-the-servers-environment"
LONGEST_ANSWER = 64 * 1024
"""The longest is a problem with its reference's source, or the API's description."""
_FORBIDDEN = (str(ROOT), sys.prefix, sys.base_prefix, "site-packages", "Traceback (most", SECRET)


@contextlib.contextmanager
def planted() -> Iterator[None]:
    """SECRET in the environment of this process, which is the server's."""
    os.environ["SERVER_SECRET"] = SECRET
    try:
        yield
    finally:
        del os.environ["SERVER_SECRET"]


def leaks(answer: str) -> list[str]:
    """What an answer holds of the server's paths, its environment and its tracebacks."""
    return [text for text in _FORBIDDEN if text in answer]
