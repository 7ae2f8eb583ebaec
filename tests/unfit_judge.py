"""The judge, whose zygote cannot end the submission of the first evaluation: for test_pool.py."""

from __future__ import annotations

from server.worker import judge, process

_plain = process.Zygote.kill_all
_ended: list[float] = []


def _kill_all(self: process.Zygote, timeout_s: float) -> None:
    _plain(self, timeout_s)
    _ended.append(timeout_s)
    if len(_ended) > 1:  # the first is the reference that was timed
        self.unfit = "for the test"


process.Zygote.kill_all = _kill_all

if __name__ == "__main__":
    judge.main()
