"""File descriptors, of which connections that nobody authenticated can take many: as many as the host allows, and one
line a minute about there being no more. Changes this process's limit."""

from __future__ import annotations

import contextlib
import logging
import resource
import time

_MOST = 65536
_QUIET_S = 60.0


class Seldom(logging.Filter):
    """Lets one message of asyncio's about a connection that cannot be accepted through per minute: it tries every
    second for each of a backlog."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if "socket.accept()" not in record.getMessage():
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _QUIET_S
        return True


def prepare() -> None:
    """Raise the limit, and keep its being reached from filling the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    logging.getLogger("asyncio").addFilter(Seldom())
