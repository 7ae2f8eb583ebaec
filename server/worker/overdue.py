"""Ends this process when it is away for too long: the judge, whose device does not answer.

A thread that waits for a device that hangs sits in the driver and hears nothing. So the kernel keeps the time, and ends
the process by SIGALRM; the server knows that signal, and tries elsewhere. Touches this process's real-time timer.
"""

from __future__ import annotations

import signal

LIMIT_S = 60.0
"""More than any work of the judge itself takes, beside seven candidates that use the same device."""

_limit_s: float | None = None


def watch() -> None:
    """From the next `allow` on, this process ends when it is late. The timer is not inherited by children."""
    global _limit_s
    _limit_s = LIMIT_S
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def allow(seconds: float = 0.0) -> None:
    """The main thread is going to wait for so long, or to work, and then calls this again."""
    if _limit_s is not None:
        signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e6) + _limit_s)


def stop() -> None:
    """It may be away for ever: nobody waits for it."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
