"""The evaluation log: one JSON line per event, on a stream and, when asked for, appended to a file.

Touches the given file, its numbered neighbours and the stream only. Logging must never cost a rollout: after
construction nothing here raises. server/rescore.py reads what this writes.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import select
import stat
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
# How long the first line waits for a pipe that is full.
_STREAM_PATIENCE_MS = 200
# They end a line for some readers, and JSON leaves them as they are.
_LINE_ENDS = "\u0085\u2028\u2029"


def numbered(path: Path) -> list[tuple[int, Path]]:
    """The full files of a log that rotates, oldest first: `path` with .1, .2 and so on after its name."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9]\d*)")
    try:
        matches = [pattern.fullmatch(name) for name in os.listdir(path.parent)]
    except OSError:
        return []
    return sorted((int(match[1]), path.parent / match[0]) for match in matches if match)


class EvalLog:
    """Writes events as JSON lines (UTF-8, no NaN or infinity). Safe to share between threads.

    Each line reaches the file in one ``write`` on a descriptor opened with O_APPEND, so several server processes may
    append to one file without tearing each other's lines. A file left with half a line, by a crash, goes on below it.
    """

    def __init__(self, path: Path | None, stream: TextIO | None = None, max_bytes: int = 0) -> None:
        """Open the log.

        Args:
            path: file to append to, created when missing; None for the stream alone.
            stream: None for this process's standard output.
            max_bytes: a file that a line would make larger than this is renamed to the next free number, and a new
                one begun. 0: never. What is not a regular file never is.

        Raises:
            OSError: the file cannot be opened for appending.
        """
        self._stream = sys.stdout if stream is None else stream
        self._lock = threading.Lock()
        self._dropped = 0
        self._said: set[str] = set()
        self._path = path
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._torn = self._stream_torn = False
        self._stream_full = False
        if path is not None:
            self._file = _open(path)
            self._torn = _ends_inside_a_line(path)

    @property
    def dropped(self) -> int:
        """Lines that did not wholly reach the stream or the file, counted once for each of the two."""
        return self._dropped

    def write(self, event: str, **fields: Any) -> None:
        """Log one event. The key "time" is the log's own and cannot be overridden.

        Non-finite floats become null, surrogates U+FFFD, and a string longer than 8192 characters loses its middle,
        except for a submission's source in "code", which is kept whole, NUL included.
        """
        try:
            record = _clean(fields, MAX_DEPTH)
            record.pop("time", None)
            code = fields.get("code")
            if isinstance(code, str):
                record["code"] = code.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": bound(event)}
            line = json.dumps(head | record, ensure_ascii=False, allow_nan=False) + "\n"
            for end in _LINE_ENDS:
                line = line.replace(end, f"\\u{ord(end):04x}")
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
                    self._rotate(len(line.encode()))
                except OSError as error:  # the line goes where it can
                    self._complain("the log cannot be rotated", error)
                try:
                    self._write_file(self._file, line)
                except OSError as error:
                    self._drop(error)

    def close(self) -> None:
        """Close the file, on the disk. Later events go to the stream only. Calling it again does nothing."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    os.fsync(self._file)
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
        data = ("\n" + line if self._stream_torn else line).encode()
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        while data:
            # The event loop must not hang on a pipe that nobody reads.
            if not ready.poll(0 if self._stream_full else _STREAM_PATIENCE_MS):
                self._stream_full = True
                raise TimeoutError("nobody reads standard output")
            self._stream_full = False
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
            self._stream_torn = bool(data)

    def _rotate(self, more_bytes: int) -> None:
        """Begin a new file if the present one has no room for so many bytes, or go to the one another server began."""
        while self._max_bytes and self._path is not None and self._file is not None:
            ours = os.fstat(self._file)
            fits = ours.st_size == 0 or ours.st_size + more_bytes <= self._max_bytes
            if fits or not stat.S_ISREG(ours.st_mode):
                return
            # Of several servers that find the file full, the first to lock it renames it; the others see that.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                if os.path.samestat(ours, os.stat(self._path)):
                    number = max((number for number, _ in numbered(self._path)), default=0) + 1
                    os.rename(self._path, f"{self._path}.{number}")
            except FileNotFoundError:
                pass  # another has renamed it, and not opened the next
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            full, self._file = self._file, _open(self._path)
            os.close(full)
            self._torn = False

    def _write_file(self, descriptor: int, line: str) -> None:
        # A disk that fills in the middle of a line leaves a fragment; ending it keeps the next line whole.
        data = ("\n" + line if self._torn else line).encode()
        written = os.write(descriptor, data)
        self._torn = written < len(data) if written else self._torn
        if written < len(data):
            raise OSError("the line was written only in part")

    def _drop(self, error: Exception) -> None:
        self._dropped += 1
        self._complain("log lines are being dropped", error)

    def _complain(self, what: str, error: Exception) -> None:
        """Say it once."""
        if what in self._said:
            return
        self._said.add(what)
        with suppress(Exception):
            reason = bound(f"{type(error).__name__}: {error}", 500)
            print(f"kernel_env: {what} ({reason})", file=sys.stderr, flush=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _ends_inside_a_line(path: Path) -> bool:
    """Whether a file's last line has no end. False for what cannot be looked at from its end, such as a pipe."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


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
