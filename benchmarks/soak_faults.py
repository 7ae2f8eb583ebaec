"""The faults that benchmarks/soak.py injects into a server from outside, one after the other.

Touches the server's processes and its own directories (soak_server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import zip_longest
from pathlib import Path

from soak_causes import SIGNALLED, Record
from soak_server import COMPILERS, LOG_NAME, Place, Server, family, in_work, judge_of, processes

# How long a disk is full, a directory unwritable, a compiler away.
LASTS_S = 6.0
# How long the whole server is stopped.
STOPPED_S = 3.0
# How long until a judge or a zygote that is lost or does not answer must have been replaced.
NOTICED_S = 120.0
# How long to look for a process, and for one that is there only when its submission's turn has come.
_FIND_S, _FIND_COMPILER_S = 8.0, 120.0
_BLOCK = b"\0" * (1 << 20)
# Each with the signal and the list of `Family` that it goes to.
_SIGNALS = {
    "judge killed": (signal.SIGKILL, "judges"),
    "zygote killed": (signal.SIGKILL, "zygotes"),
    "zygote stopped": (signal.SIGSTOP, "zygotes"),
    "candidate killed": (signal.SIGKILL, "candidates"),
    "compiler killed": (signal.SIGKILL, "compilers"),
    "judge stopped": (signal.SIGSTOP, "judges"),
}
assert set(_SIGNALS) == SIGNALLED


class Faults:
    """Injects faults into one server. `records` says which, from when to when (time.time()), and what came of it."""

    def __init__(
        self,
        server: Server,
        evaluator: str,
        seed: int,
        log_bytes: int,
        compilers_idle: Callable[[], Awaitable[None]],
        compile_soon: Callable[[], None],
    ) -> None:
        """`compilers_idle` returns once no submission is compiled by g++: whether a compiler was missing is found out
        right after it was missed, and must still be true then. `compile_soon` has one compiled before long. A log of
        `log_bytes` is full."""
        self.records: list[Record] = []
        self.skipped: dict[str, str] = {}
        self._server = server
        self._place: Place = server.place
        self._random = random.Random(seed)
        self._log_bytes = log_bytes
        self._compilers_idle = compilers_idle
        self._compile_soon = compile_soon
        if evaluator == "mock":
            self.skipped |= dict.fromkeys((*_SIGNALS, "compiler missing"), "the mock evaluator has no workers")
        if not self._place.limited:
            self.skipped["disk full"] = "a file system of its own cannot be mounted here"
        self._others = {
            "disk full": self._fill_disk,
            "cache unwritable": self._swap_cache,
            "log unwritable": self._swap_logs,
            "compiler missing": self._hide_compilers,
            "server stopped": self._stop_server,
        }
        # In turn, those after which a judge is started again apart from one another as far as may be.
        every = [kind for pair in zip_longest(_SIGNALS, self._others) for kind in pair if kind is not None]
        self.kinds = [kind for kind in every if kind not in self.skipped]

    def covered(self) -> bool:
        """Whether each kind has been injected."""
        return {record["kind"] for record in self.records if record["hit"] and record["ended"]} >= set(self.kinds)

    async def inject(self, kind: str) -> None:
        """One fault, until it is over."""
        record: Record = {"kind": kind, "began": time.time(), "ended": None, "hit": True, "nonces": []}
        self.records.append(record)
        try:
            if kind in _SIGNALS:
                await self._signal(kind, record)
            else:
                record["hit"] = await self._others[kind]() is not False
        finally:
            record["ended"] = time.time()

    async def _signal(self, kind: str, record: Record) -> None:
        number, role = _SIGNALS[kind]
        victim = await self._find(role)
        record["began"] = time.time()
        every = processes()
        judge = judge_of(victim, every) if victim is not None else None
        if victim is None or judge is None:
            record["hit"] = False
            return
        hit = in_work(judge)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, number)
        if role in ("candidates", "compilers"):
            record["nonces"] = sorted(hit)
            return
        # Until it and its judge are replaced: what comes before that is hit as well.
        end = time.monotonic() + NOTICED_S
        lost = [every[pid] for pid in {victim, judge}]
        while any(one.is_alive() for one in lost):
            hit |= await asyncio.to_thread(in_work, judge)
            if time.monotonic() > end:
                record["unnoticed"] = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGCONT)
                break
            await asyncio.sleep(0.1)
        record["nonces"] = sorted(hit)

    async def _find(self, role: str) -> int | None:
        """A process of this role; None where there is none for a while."""
        compiler = role == "compilers"
        if compiler:
            self._compile_soon()
        end = time.monotonic() + (_FIND_COMPILER_S if compiler else _FIND_S)
        while time.monotonic() < end:
            pids = getattr(await asyncio.to_thread(family, self._server.pid), role)
            if pids:
                return self._random.choice(pids)
            await asyncio.sleep(0.05)
        return None

    async def _fill_disk(self) -> None:
        filler = self._place.temporary / "filler"
        try:
            await asyncio.to_thread(_fill, filler)
            end = time.monotonic() + LASTS_S
            while time.monotonic() < end:
                await asyncio.sleep(0.2)
                await asyncio.to_thread(_fill, filler)  # what others have freed meanwhile
        finally:
            filler.unlink(missing_ok=True)

    async def _swap_cache(self) -> None:
        with _file_in_place_of(self._place.cache):
            await asyncio.sleep(LASTS_S)

    async def _swap_logs(self) -> bool:
        """Until the log is full and no other can be begun; False where it does not get full."""
        with _file_in_place_of(self._place.logs) as aside:
            end = time.monotonic() + NOTICED_S
            while time.monotonic() < end:
                if (aside / LOG_NAME).stat().st_size > self._log_bytes:
                    return True
                await asyncio.sleep(0.1)
        return False

    async def _stop_server(self) -> None:
        os.kill(self._server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    async def _hide_compilers(self) -> None:
        links = {path: os.readlink(path) for name in COMPILERS if (path := self._place.tools / name).is_symlink()}
        for path in links:
            path.unlink()
        try:
            await asyncio.sleep(LASTS_S)
            await self._compilers_idle()
        finally:
            for path, target in links.items():
                path.symlink_to(target)


@contextlib.contextmanager
def _file_in_place_of(directory: Path) -> Iterator[Path]:
    """A file where a directory was, which is yielded: permissions would not keep root from writing."""
    aside = directory.with_name(f"{directory.name}-aside")
    directory.rename(aside)
    try:
        directory.touch()
        yield aside
    finally:
        directory.unlink()
        aside.rename(directory)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as handle:
        for size in (len(_BLOCK), 4096, 1):
            with contextlib.suppress(OSError):
                while handle.write(_BLOCK[:size]) == size:
                    pass
