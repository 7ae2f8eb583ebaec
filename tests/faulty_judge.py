"""The judge, whose device fails in every evaluation as TEST_FAULT says: for test_faults_matrix.py."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

import torch

from server.worker import judge, overdue, task_module

_FAULT = os.environ["TEST_FAULT"]
_SHORT = torch.OutOfMemoryError("for the test")
_ERRORS = {
    "oom": MemoryError("for the test"),
    "lost": torch.AcceleratorError("for the test"),
    "crowded": _SHORT,
    "does not fit": _SHORT,
    "reference: disk": OSError(errno.ENOSPC, "for the test"),
    "reference: broken": ValueError(f"for the test, in {os.getcwd()} and {sys.prefix}"),
}


def _fail(*_: Any) -> Any:
    if _FAULT == "silent":
        ctypes.CDLL(None).pause()  # in C, as a driver that waits: no handler of Python's would run
    raise _ERRORS[_FAULT]


def _fail_as_the_references(self: task_module.TaskModule, *_: Any) -> Any:
    raise self._error("Model's constructor", _ERRORS[_FAULT]) from _ERRORS[_FAULT]


if _FAULT == "fills":  # while the submission was compiled, which failed for that
    _free_bytes = iter([judge.MIN_FREE_BYTES, 0] * 2)
    judge.Judge._free_bytes = lambda self: next(_free_bytes)  # type: ignore[method-assign]
elif _FAULT == "full":
    judge.MIN_FREE_BYTES = 1 << 60
elif _FAULT == "candidate: crowded":
    judge.Judge._is_crowded = lambda self: True  # type: ignore[method-assign]
elif _FAULT.startswith("reference: "):
    task_module.TaskModule.construct = _fail_as_the_references  # type: ignore[method-assign]
else:
    judge.measure_baseline = _fail
    judge.Judge._is_crowded = lambda self: _FAULT == "crowded"  # type: ignore[method-assign]

if __name__ == "__main__":
    if _FAULT == "silent":
        overdue.LIMIT_S = 1.0
        overdue.watch()
    judge.main()
