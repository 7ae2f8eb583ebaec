"""Removes what candidates leave on disk, without letting one that left a million files hold up the next."""

from __future__ import annotations

import subprocess

_PATIENCE_S = 2.0
_LIMIT_S = 120.0


class Trash:
    """Runs `rm` beside the judge; at most one removal is left running."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None

    def remove(self, path: str) -> None:
        """Remove a directory tree: wait a moment, then go on while it is being removed.

        A removal that is still running from before is waited for first, so that they do not pile up.
        """
        self._wait(_LIMIT_S)
        self._running = subprocess.Popen(
            ["/bin/rm", "-rf", "--", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait(_PATIENCE_S)

    def _wait(self, timeout_s: float) -> None:
        if self._running is None:
            return
        try:
            self._running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return
        self._running = None
