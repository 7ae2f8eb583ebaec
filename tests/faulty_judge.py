"""The judge, whose device fails in every evaluation as TEST_FAULT says ("oom" or "lost"): for test_faults_matrix.py."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch

from server.worker import judge

_FAULTS = {"oom": torch.OutOfMemoryError("for the test"), "lost": torch.AcceleratorError("for the test")}


def _fail(*_: Any) -> NoReturn:
    raise _FAULTS[os.environ["TEST_FAULT"]]


judge.measure_baseline = _fail

if __name__ == "__main__":
    judge.main()
