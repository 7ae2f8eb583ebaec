"""Whose fault an error is that the judge meets while it reads what a candidate sent. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from server.worker.process import SubmissionFailed

# What a value of the right type and the wrong size or content can raise, in Python and in torch.
_FROM_VALUES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def interpreting() -> Iterator[None]:
    """Around code that only reads what a candidate sent: an error there is the candidate's.

    Not around the comparison: an error of ours there must not cost a submission its reward.

    Raises:
        SubmissionFailed: as such, or for an error that a value of the candidate's caused.
    """
    try:
        yield
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except _FROM_VALUES as error:
        what = f"The submission's process sent an answer that makes no sense ({type(error).__name__})."
        raise SubmissionFailed("protocol_error", what) from error
