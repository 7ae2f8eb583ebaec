"""Removes what candidates leave on disk, without letting one that left a million files hold up the next.

By `rm`, not shutil.rmtree: that recurses, and a tree twenty thousand directories deep ends it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess

from server.worker import overdue

_PATIENCE_S = 2.0
_LIMIT_S = 120.0


def _start(path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/rm", "-rf", "--", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def remove_tree(path: str) -> None:
    """Remove a directory tree, or leave what two minutes do not suffice for. Never raises."""
    try:
        _start(path).wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass
    except OSError:  # no process to be had; this one can remove all but the deepest
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


class Trash:
    """Runs `rm` beside the judge; at most one removal is left running."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None

    def remove(self, path: str) -> None:
        """Remove a directory tree: wait a moment, then go on while it is being removed. Never raises.

        A removal that is still running from before is waited for first, so that they do not pile up.
        """
        with contextlib.suppress(OSError):
            self._wait(_LIMIT_S)
            self._running = _start(path)
            self._wait(_PATIENCE_S)

    def _wait(self, timeout_s: float) -> None:
        if self._running is None:
            return
        overdue.allow(timeout_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running.wait(timeout_s)
            self._running = None
