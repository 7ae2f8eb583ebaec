"""A candidate that is stopped while another's calls are timed does nothing, whatever it tried before.

Submissions count in shared memory. While they are stopped the same loop runs outside, and is the clock by which their
counters stand still. Needs root, as test_sandbox.py.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Linux", allow_module_level=True)

from server.worker import children
from server.worker.process import CandidateProcess, SubmissionFailed
from server.worker.protocol import Exited, Freeze, Frozen, Load, Loaded
from server.worker.zygote import Zygote
from tests.cpu_pool import until
from tests.sandbox_hosts import BARE, CONTAINER, FULL, SAME_UID, TIMEOUT_S, start

SLOTS = 64
COUNT = f"""\
import ctypes, mmap, os, signal, threading, time
slots = os.open("counters", os.O_RDWR | os.O_CREAT, 0o666)
os.ftruncate(slots, {SLOTS * 8})
counters = memoryview(mmap.mmap(slots, {SLOTS * 8})).cast("Q")

def count(slot, also=lambda: None):
    while True:
        counters[slot] += 1
        also()
        time.sleep(0.0002)

def beside(slot, also=lambda: None):
    threading.Thread(target=count, args=(slot, also), daemon=True).start()

def forked(slot, also=lambda: None):
    if os.fork() == 0:
        count(slot, also)

"""
END = "\nimport torch\nclass ModelNew(torch.nn.Module):\n    pass\n"

PLAIN = """
beside(0)
beside(1)
if os.fork() == 0:
    beside(2)
    count(3)
"""
DAEMON = """
for slot in (0, 1):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            count(slot)
        os._exit(0)
    os.wait()
"""
# Never the process that was there a moment before.
HOPPING = """
if os.fork() == 0:
    while True:
        counters[0] += 1
        if os.fork() != 0:
            os._exit(0)
"""
WAKING_ONE_ANOTHER = """
def wake():
    for pid in others:
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass

others = [os.getpid()]
for slot in (0, 1, 2):
    pid = os.fork()
    if pid == 0:
        count(slot, wake)
    others.append(pid)
beside(3, wake)
"""
TIMER = f"""
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_long), ("signal", ctypes.c_int), ("kind", ctypes.c_int), ("rest", ctypes.c_int * 12)]

signal.signal(signal.SIGCONT, lambda *_: None)  # one that is ignored comes once
libc, timer = ctypes.CDLL(None), ctypes.c_int()
create, settle = {(222, 223) if platform.machine() == "x86_64" else (107, 110)}
event = Event(0, signal.SIGCONT, 0)
libc.syscall(create, 1, ctypes.byref(event), ctypes.byref(timer))
libc.syscall(settle, timer, 0, (ctypes.c_long * 4)(0, 20000000, 0, 20000000), None)
beside(0)
"""

ATTACKS = {
    "threads and processes": (PLAIN, 4, (FULL, CONTAINER, SAME_UID, BARE)),
    "daemons": (DAEMON, 2, (FULL, CONTAINER, SAME_UID)),
    "a process that always forks and ends": (HOPPING, 1, (FULL, CONTAINER)),
    "processes that wake one another": (WAKING_ONE_ANOTHER, 4, (FULL, CONTAINER, SAME_UID)),
    "a timer that wakes it": (TIMER, 1, (FULL, SAME_UID)),
}
CASES = [
    pytest.param(code, slots, kind, id=f"{name}, {kind.name}")
    for name, (code, slots, kinds) in ATTACKS.items()
    for kind in kinds
]


class Counters:
    """What a process counts in the directory."""

    def __init__(self, directory: Path, slots: int) -> None:
        with open(directory / "counters", "r+b") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")
        self._slots = slots

    def read(self) -> list[int]:
        return self._memory[: self._slots].tolist()

    def have_gone_on(self, since: list[int], rounds: int = 1) -> bool:
        """Whether every one has advanced by so many."""
        return all(now >= before + rounds for now, before in zip(self.read(), since, strict=True))


@contextlib.contextmanager
def outside(directory: Path) -> Iterator[Counters]:
    """The loop in a process that nobody stops."""
    with subprocess.Popen([sys.executable, "-c", COUNT + "count(0)"], cwd=directory) as process:
        try:
            until((directory / "counters").exists)
            until(lambda: (directory / "counters").stat().st_size)
            yield Counters(directory, 1)
        finally:
            process.kill()


@pytest.mark.parametrize(("code", "slots", "kind"), CASES)
def test_a_stopped_candidate_stands_still(code, slots, kind, tmp_path):
    with outside(tmp_path) as clock, start(kind).candidate(COUNT + code + END) as (candidate, workdir):
        candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
        counters = Counters(workdir, slots)
        stopped = counters.read()
        for _ in range(3):
            since = counters.read()
            until(lambda since=since: counters.have_gone_on(since, 10))
            candidate.freeze()
            stopped, began = counters.read(), clock.read()
            until(lambda began=began: clock.have_gone_on(began, 200))
            assert counters.read() == stopped
            candidate.thaw()
        until(lambda: counters.have_gone_on(stopped))


@pytest.mark.parametrize("kind", (FULL, CONTAINER), ids=lambda kind: kind.name)
def test_what_outlives_the_first_process_is_stopped_too(kind, tmp_path):
    with outside(tmp_path) as clock, start(kind).candidate(COUNT + "forked(0)\nos._exit(0)") as (candidate, workdir):
        directory = os.open(workdir, os.O_PATH)  # is not found any more when that process has ended
        with pytest.raises(SubmissionFailed, match="exit code 0"):
            candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
        counters = Counters(Path(f"/proc/self/fd/{directory}"), 1)
        os.close(directory)
        until(lambda: counters.have_gone_on([0]))
        candidate.freeze()
        stopped, began = counters.read(), clock.read()
        until(lambda: clock.have_gone_on(began, 200))
        assert counters.read() == stopped


def test_a_compilers_processes_may_go_on():
    with start(FULL).candidate(COUNT + PLAIN + END) as (candidate, workdir):
        candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
        counters = Counters(workdir, 4)
        until(lambda: counters.have_gone_on([0] * 4))
        candidate.compiles = True
        candidate.freeze()
        stopped = counters.read()
        until(lambda: counters.read()[3] >= stopped[3] + 100)
        assert counters.read()[:2] == stopped[:2]


def test_stopping_gives_up_after_a_while(monkeypatch):
    monkeypatch.setattr(children, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(children, "_has_stopped", lambda pid, signalled: False)
    with subprocess.Popen(["sleep", "1000"]) as process, pytest.raises(TimeoutError):
        try:
            children.Children(None, False).freeze(process.pid)
        finally:
            process.kill()


def test_one_that_would_not_stop_is_ended_and_it_is_its_own_doing():
    sent: list[object] = []
    ended: list[bool] = []

    def freeze(only: int | None) -> None:
        raise TimeoutError

    zygote = Zygote.__new__(Zygote)
    zygote._connection = SimpleNamespace(send=sent.append)  # type: ignore[assignment]
    zygote._children = SimpleNamespace(freeze=freeze, end=lambda: ended.append(True))  # type: ignore[assignment]
    zygote._pid = 7
    zygote._handle(Freeze(True))
    exited, frozen = sent
    assert ended == [True] and isinstance(frozen, Frozen)
    assert isinstance(exited, Exited) and exited.unstoppable

    candidate = CandidateProcess.__new__(CandidateProcess)
    candidate._zygote = SimpleNamespace(exited=exited)  # type: ignore[assignment]
    with pytest.raises(SubmissionFailed, match="would not stop") as failure:
        candidate._raise_death()
    assert failure.value.outcome == "crashed"
