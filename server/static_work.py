"""How much work the static checks may do on one source. Touches nothing.

A count of steps, not a clock: the same source gets the same answer on any machine, however busy.
"""

from __future__ import annotations

# 256 KB of the densest ordinary code take about a fifth of it; it lasts a few seconds.
MAX_WORK = 5_000_000


class TooComplexError(Exception):
    """A source asks for more work than the limit, or nobody waits for the answer any more."""


class Work:
    """The steps done for one source: nodes visited, names looked up, tokens read."""

    def __init__(self, limit: int = MAX_WORK) -> None:
        self.limit = limit
        self.done = 0

    def spend(self, steps: int = 1) -> None:
        """Counts steps; raises TooComplexError once there are too many."""
        self.done += steps
        if self.done > self.limit:
            raise TooComplexError

    def stop(self) -> None:
        """Makes the next step raise, in whatever thread it is done."""
        self.limit = -1
