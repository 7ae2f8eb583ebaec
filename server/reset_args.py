"""What reset accepts besides the task choice, checked by hand: OpenEnv passes a client's JSON through unchecked.

Pure; touches nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, get_args

from server.errors import InvalidRequest, RequestCode, echo
from server.prompts import Language
from server.text import bound

RESET_ARGUMENTS = ("seed", "task_id", "split", "language", "episode_id", "step_deadline_s")
LANGUAGES: tuple[Language, ...] = get_args(Language)
MAX_STEP_DEADLINE_S = 3600.0
MAX_EPISODE_ID_CHARS = 255
_MAX_NAMES_ECHOED = 5


def check_names(kwargs: Mapping[str, Any]) -> None:
    """Refuse keywords that reset does not have: a misspelt one must not be a silent default.

    Raises:
        InvalidRequest: there is one; the message lists the valid ones.
    """
    unknown = sorted(set(kwargs) - set(RESET_ARGUMENTS))
    if unknown:
        names = ", ".join(echo(name) for name in unknown[:_MAX_NAMES_ECHOED])
        message = f"reset has no argument {names}. Valid: {', '.join(RESET_ARGUMENTS)}."
        raise InvalidRequest(RequestCode.UNKNOWN_ARGUMENT, message)


def parse_language(value: object) -> Language:
    """The language asked for, Triton when None.

    Raises:
        InvalidRequest: there is no such language.
    """
    if value is None:
        return "triton"
    for language in LANGUAGES:
        if value == language:
            return language
    message = f"Unknown language {echo(value)}. Valid languages: {', '.join(LANGUAGES)}."
    raise InvalidRequest(RequestCode.UNKNOWN_LANGUAGE, message)


def parse_episode_id(value: object) -> str:
    """The id asked for, a random one when None.

    Raises:
        InvalidRequest: not a string of 1 to 255 characters.
    """
    if value is None:
        return uuid.uuid4().hex
    if not isinstance(value, str) or not 0 < len(value) <= MAX_EPISODE_ID_CHARS:
        message = f"episode_id must be a string of 1 to {MAX_EPISODE_ID_CHARS} characters, not {echo(value)}."
        raise InvalidRequest(RequestCode.INVALID_ARGUMENT, message)
    return bound(value, MAX_EPISODE_ID_CHARS)


def parse_deadline(value: object, default_s: float) -> float:
    """Seconds that a step may take, `default_s` when None.

    Raises:
        InvalidRequest: not a number above 0 and at most 3600.
    """
    if value is None:
        return default_s
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_STEP_DEADLINE_S:
        message = f"step_deadline_s must be a number of seconds above 0 and at most {MAX_STEP_DEADLINE_S:g}."
        raise InvalidRequest(RequestCode.INVALID_ARGUMENT, message)
    return float(value)
