"""Errors that a client's request can cause, and those that the operator's setup causes. Standard library only.

A client sees `code` and `message`; the session lives on. Messages are bounded, whatever the client sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

MAX_ECHO_CHARS = 100


class RequestCode(StrEnum):
    """Why a request was refused."""

    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_SPLIT = "unknown_split"
    UNKNOWN_LANGUAGE = "unknown_language"
    UNSCORABLE_TASK = "unscorable_task"
    UNKNOWN_ARGUMENT = "unknown_argument"
    INVALID_ARGUMENT = "invalid_argument"


def echo(value: object) -> str:
    """The repr of what a client sent, cut to `MAX_ECHO_CHARS` characters."""
    text = repr(value[: MAX_ECHO_CHARS + 1]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
    return text if len(text) <= MAX_ECHO_CHARS else text[: MAX_ECHO_CHARS - 3] + "..."


class InvalidRequest(ValueError):
    """The request cannot be served as it is; `message` lists what is valid.

    Raises:
        ValueError: `code` is not one of `RequestCode`'s values.
    """

    def __init__(self, code: RequestCode | str, message: str) -> None:
        super().__init__(message)
        self.code = RequestCode(code)
        self.message = message


class UnknownTaskError(InvalidRequest):
    """There is no task with this id; the message suggests close ones."""

    def __init__(self, task_id: str, suggestions: Sequence[str], total: int) -> None:
        hint = f" Did you mean {', '.join(suggestions)}?" if suggestions else ""
        message = f"Unknown task_id {echo(task_id)}.{hint} There are {total} tasks; ids look like 'level1/19_ReLU'."
        super().__init__(RequestCode.UNKNOWN_TASK, message)
        self.suggestions = tuple(suggestions)


class UnknownSplitError(InvalidRequest):
    """There is no such split; the message lists those there are."""

    def __init__(self, split: str, valid: Iterable[str]) -> None:
        message = f"Unknown split {echo(split)}. Valid splits: {', '.join(valid)}."
        super().__init__(RequestCode.UNKNOWN_SPLIT, message)


class TaskSourceError(RuntimeError):
    """The task directory, or a data file beside it, is not usable: the operator has to act, not the client."""


class ConfigurationError(RuntimeError):
    """The settings contradict each other or this machine; the message is a sentence that an operator can act on."""
