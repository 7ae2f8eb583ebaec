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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from soak_server import COMPILERS, Place, Server, family, processes

# How long a disk is full, a directory unwritable, a compiler away.
LASTS_S = 6.0
# How long until a judge that does not answer must have been replaced.
NOTICED_S = 60.0
_FIND_S = 8.0
_BLOCK = b"\0" * (1 << 20)
NEED_WORKERS = ("judge killed", "zygote killed", "candidate killed", "judge stopped")
KINDS = (*NEED_WORKERS, "disk full", "cache unwritable", "compiler missing")

Record = dict[str, Any]


class Faults:
    """Injects faults into one server. `records` says which, from when to when (time.time()), and what came of it."""

    def __init__(
        self, server: Server, evaluator: str, seed: int, compilers_idle: Callable[[], Awaitable[None]]
    ) -> None:
        """`compilers_idle` returns once no submission is compiled by g++: whether a compiler was missing is found out
        right after it was missed, and must still be true then."""
        self.records: list[Record] = []
        self.skipped: dict[str, str] = {}
        self._server = server
        self._place: Place = server.place
        self._random = random.Random(seed)
        self._compilers_idle = compilers_idle
        if evaluator == "mock":
            self.skipped |= dict.fromkeys((*NEED_WORKERS, "compiler missing"), "the mock evaluator has no workers")
        if not self._place.limited:
            self.skipped["disk full"] = "a file system of its own cannot be mounted here"
        self.kinds = [kind for kind in KINDS if kind not in self.skipped]

    def covered(self) -> bool:
        """Whether each kind has been injected."""
        return {record["kind"] for record in self.records if record["hit"] and record["ended"]} >= set(self.kinds)

    async def inject(self, kind: str) -> None:
        """One fault, until it is over."""
        record: Record = {"kind": kind, "began": time.time(), "ended": None, "hit": True}
        self.records.append(record)
        try:
            if kind in NEED_WORKERS:
                await self._signal(kind, record)
            elif kind == "disk full":
                await self._fill_disk()
            elif kind == "cache unwritable":
                await self._swap_cache()
            else:
                await self._hide_compilers()
        finally:
            record["ended"] = time.time()

    async def _signal(self, kind: str, record: Record) -> None:
        victim = await self._find(kind.split()[0])
        record["began"] = time.time()
        if victim is None:
            record["hit"] = False
            return
        started = processes().get(victim)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP if kind == "judge stopped" else signal.SIGKILL)
        if kind != "judge stopped":
            return
        end = time.monotonic() + NOTICED_S
        while time.monotonic() < end:
            now = processes().get(victim)
            if now is None or started is None or now.started != started.started:
                return
            await asyncio.sleep(0.2)
        record["unnoticed"] = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)

    async def _find(self, role: str) -> int | None:
        """A judge, a zygote, or a process that runs a submission; None where there is none for a while."""
        end = time.monotonic() + _FIND_S
        while time.monotonic() < end:
            found = await asyncio.to_thread(family, self._server.pid)
            pids = {"judge": found.judges, "zygote": found.zygotes, "candidate": found.candidates}[role]
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
        """A file in its place: permissions would not keep root from writing."""
        aside = self._place.cache.with_name("cache-aside")
        self._place.cache.rename(aside)
        try:
            self._place.cache.touch()
            await asyncio.sleep(LASTS_S)
        finally:
            self._place.cache.unlink()
            aside.rename(self._place.cache)

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


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as handle:
        for size in (len(_BLOCK), 4096, 1):
            with contextlib.suppress(OSError):
                while handle.write(_BLOCK[:size]) == size:
                    pass
