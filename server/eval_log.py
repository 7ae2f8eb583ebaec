"""The evaluation log: one JSON line per event, on a stream and, when asked for, appended to a file.

Touches the given file and stream only. Logging must never cost a rollout: after construction nothing here raises.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from server.text import bound

MAX_STRING_CHARS = 8192
MAX_DEPTH = 8


class EvalLog:
    """Writes events as JSON lines (UTF-8, no NaN or infinity). Safe to share between threads.

    Each line reaches the file in one ``write`` on a descriptor opened with O_APPEND, so several server processes may
    append to one file without tearing each other's lines.
    """

    def __init__(self, path: Path | None, stream: TextIO | None = None) -> None:
        """Open the log.

        Args:
            path: file to append to, created when missing; None for the stream alone.
            stream: None for this process's standard output.

        Raises:
            OSError: the file cannot be opened for appending.
        """
        self._stream = sys.stdout if stream is None else stream
        self._lock = threading.Lock()
        self._dropped = 0
        self._file: int | None = None
        self._torn = False
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def dropped(self) -> int:
        """Lines that did not wholly reach the stream or the file, counted once for each of the two."""
        return self._dropped

    def write(self, event: str, **fields: Any) -> None:
        """Log one event. The key "time" is the log's own and cannot be overridden.

        Non-finite floats become null, surrogates U+FFFD, and a string longer than 8192 characters loses its middle.
        """
        try:
            record = _clean(fields, MAX_DEPTH)
            record.pop("time", None)
            head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": bound(event)}
            line = json.dumps(head | record, ensure_ascii=False, allow_nan=False) + "\n"
        except Exception as error:  # a field whose own methods raise
            with self._lock:
                self._drop(error)
            return
        with self._lock:
            try:
                self._write_stream(line)
            except Exception as error:
                self._drop(error)
            if self._file is not None:
                try:
                    self._write_file(self._file, line)
                except OSError as error:
                    self._drop(error)

    def close(self) -> None:
        """Close the file. Later events go to the stream only. Calling it again does nothing."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    os.close(self._file)
                self._file = None

    def _write_stream(self, line: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except (AttributeError, OSError):  # an in-memory stream
            self._stream.write(line)
            self._stream.flush()
            return
        # Past Python's buffer: text left there by a failed write would be retried, and fail, at exit.
        self._stream.flush()
        data = line.encode()
        while data:
            data = data[os.write(descriptor, data) :]

    def _write_file(self, descriptor: int, line: str) -> None:
        # A disk that fills in the middle of a line leaves a fragment; ending it keeps the next line whole.
        data = ("\n" + line if self._torn else line).encode()
        written = os.write(descriptor, data)
        self._torn = written < len(data) if written else self._torn
        if written < len(data):
            raise OSError("the line was written only in part")

    def _drop(self, error: Exception) -> None:
        self._dropped += 1
        if self._dropped == 1:
            with suppress(Exception):
                reason = bound(f"{type(error).__name__}: {error}", 500)
                print(f"kernel_env: log lines are being dropped ({reason})", file=sys.stderr, flush=True)


def _clean(value: Any, depth: int) -> Any:
    """A copy of ``value`` that JSON can hold: finite, bounded and at most ``depth`` levels deep."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return bound(value, MAX_STRING_CHARS)
    if depth > 0 and isinstance(value, Mapping):
        return {bound(str(key), MAX_STRING_CHARS): _clean(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item, depth - 1) for item in value]
    return bound(str(value), MAX_STRING_CHARS)
