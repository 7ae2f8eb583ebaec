"""Which signal ended a process, and what follows from it. Reads /proc/vmstat.

`ended_by` runs in candidates, so it can be made to say anything: what it says earns a submission one more try, as
killing itself does, and no more.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator

# A process comes to these only where somebody sends them: itself, or an operator, or what watches the host.
_SENT = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_DESCRIPTIONS = {"Killed": signal.SIGKILL, "Terminated": signal.SIGTERM, "Hangup": signal.SIGHUP}
_SHELL = 128
"""A shell, ninja and nvcc end by this and the signal's number."""
_PATTERNS = (
    re.compile(r"(Killed|Terminated|Hangup) signal terminated program"),  # g++, of cc1plus and as
    re.compile(r"terminated with signal (\d+)"),  # collect2, of ld
    re.compile(r"died due to signal (\d+)"),  # nvcc, of cudafe++ and cicc
    re.compile(r"FAILED: \[code=(1[2-9]\d)\]"),  # ninja, of g++ and nvcc
    re.compile(r"failed with error code -(\d+)"),  # Triton, of ptxas
    re.compile(r"died with <Signals\.(\w+)"),  # subprocess.CalledProcessError
)
# What an older ninja says of a command that ended without a word but its shell's; a compiler that finds an error says
# what it is.
_SILENT = re.compile(r"FAILED: .*\n.*\n(?:(?:Killed|Terminated|Hangup)\n)?ninja: build stopped")


def ended_by(error: BaseException) -> int | None:
    """The signal by which a process ended whose end made `error`, or an error that led to it; None where none shows."""
    for link in causes(error):
        if isinstance(link, subprocess.CalledProcessError) and (number := _of_status(link.returncode)) is not None:
            return number
        if _SILENT.search(str(link)) is not None:
            return signal.SIGKILL
        for pattern in _PATTERNS:
            if (found := pattern.search(str(link))) is not None:
                return _number(found.group(1))
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and so on."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def sent_by_somebody(number: int | None) -> int | None:
    """The signal, if it is one that does not come by itself."""
    return number if number in _SENT else None


def name(number: int) -> str:
    """For a person: SIGKILL (signal 9)."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory since the host was started."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as lines:
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _of_status(status: int) -> int | None:
    if status < 0:
        return -status
    number = status - _SHELL
    return number if number in set(signal.Signals) else None


def _number(word: str) -> int | None:
    if word.isdigit():
        return _of_status(int(word)) if int(word) > _SHELL else int(word)
    if word in _DESCRIPTIONS:
        return int(_DESCRIPTIONS[word])
    return int(signal.Signals[word]) if word in signal.Signals.__members__ else None
