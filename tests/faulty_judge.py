"""The judge, whose device fails in every evaluation as TEST_FAULT says: for test_faults_matrix.py."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from server.worker import judge, overdue

_FAULT = os.environ["TEST_FAULT"]
_ERRORS = {"oom": torch.OutOfMemoryError("for the test"), "lost": torch.AcceleratorError("for the test")}


def _fail(*_: Any) -> Any:
    if _FAULT == "silent":
        ctypes.CDLL(None).pause()  # in C, as a driver that waits: no handler of Python's would run
    raise _ERRORS[_FAULT]


if _FAULT == "fills":  # while the submission was compiled, which failed for that
    _free_bytes = iter([judge.MIN_FREE_BYTES, 0] * 2)
    judge.Judge._free_bytes = lambda self: next(_free_bytes)  # type: ignore[method-assign]
elif _FAULT == "full":
    judge.MIN_FREE_BYTES = 1 << 60
else:
    judge.measure_baseline = _fail

if __name__ == "__main__":
    if _FAULT == "silent":
        overdue.LIMIT_S = 1.0
        overdue.watch()
    judge.main()
