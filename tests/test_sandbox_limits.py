"""What memory a candidate can take that no limit of its process counts, who is ended when it runs out, and what is said
then; and verdicts that must not be lost when a candidate cannot be ended. Needs root, as test_sandbox.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Linux", allow_module_level=True)

from server.worker import process
from server.worker.lease import InfrastructureFault
from server.worker.process import SubmissionFailed
from server.worker.protocol import Load, Loaded
from tests.cpu_pool import until
from tests.sandbox_hosts import (
    BARE,
    CONTAINER,
    FULL,
    HOSTS,
    MEMORY_BYTES,
    NO_LANDLOCK,
    SAME_UID,
    TIMEOUT_S,
    UNPRIVILEGED,
    Host,
    start,
)

everywhere = pytest.mark.parametrize("kind", HOSTS, ids=lambda kind: kind.name)


def failure_of(host: Host, code: str) -> SubmissionFailed:
    """How a submission ends."""
    with host.candidate(code) as (candidate, _):
        with pytest.raises(SubmissionFailed) as failure:
            candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
    return failure.value


# ---------------------------------------------------------------- memory


# A mount below a covered one is listed too: its path then leads into what covers it, which counts once.
FILES_IN_MEMORY = """
found = {}
for line in open("/proc/self/mounts"):
    _, path, kind, _ = line.split(" ", 3)
    if kind == "tmpfs" and os.access(path, os.W_OK):
        size = os.statvfs(path)
        device = os.stat(path).st_dev
        if device not in found or len(path) < len(found[device][0]):
            found[device] = path, size.f_frsize * size.f_blocks, size.f_files
result = {path: sizes for path, *sizes in found.values()}
"""


@pytest.mark.parametrize("kind", (FULL, NO_LANDLOCK, UNPRIVILEGED), ids=lambda kind: kind.name)
def test_files_in_memory_are_limited_together(kind):
    found = start(kind).run(FILES_IN_MEMORY)
    assert isinstance(found, dict) and {"/tmp", "/dev/shm", "/var/tmp"} <= set(found)
    working, _ = found.pop("/tmp")
    rounding = 1 << 20
    assert 0 < working <= MEMORY_BYTES // 4 + rounding
    assert 0 < sum(size for size, _ in found.values()) <= MEMORY_BYTES // 4 + rounding
    # An empty file has no size and takes memory all the same.
    assert all(0 < files <= 1 << 15 for _, files in found.values())


def test_a_file_in_memory_cannot_grow_beyond_it():
    body = "file = os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT)\nos.posix_fallocate(file, 0, size)\nresult = True"
    assert start(FULL).run(body, size=MEMORY_BYTES // 4 + 1) is None


OUT_OF_MEMORY_SCORE = """
result = [int(open("/proc/self/oom_score_adj").read())]
try:
    open("/proc/self/oom_score_adj", "w").write("0")
except OSError:
    pass
child = subprocess.run(["cat", "/proc/self/oom_score_adj"], stdout=subprocess.PIPE)
result.append(int(child.stdout))
"""


@everywhere
def test_candidates_are_ended_first_when_memory_runs_out(kind):
    at_first, afterwards = start(kind).run(OUT_OF_MEMORY_SCORE)  # type: ignore[misc]
    assert at_first == 1000
    if kind not in (UNPRIVILEGED, SAME_UID):  # only root can make it stay so
        assert afterwards == 1000
    zygote = start(kind).zygote._process.pid
    own = Path("/proc/self/oom_score_adj").read_text()
    assert Path(f"/proc/{zygote}/oom_score_adj").read_text() == own


@contextlib.contextmanager
def little_memory(pid: int, limit_bytes: int) -> Iterator[None]:
    """A control group with so much memory, with this process in it; skips where none can be made."""
    base = next((path for path in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")) if path.is_dir()), None)
    if base is None:
        pytest.skip("no control groups here")
    group = base / f"kernel_env-test-{uuid.uuid4().hex}"
    limit = "memory.limit_in_bytes" if base.name == "memory" else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")

    def removed() -> bool:
        with contextlib.suppress(OSError):
            for left in (group / "cgroup.procs").read_text().split():
                (base / "cgroup.procs").write_text(left)
            group.rmdir()
        return not group.exists()

    try:
        yield
    finally:
        until(removed)


FILL = """
import os
held, data = [], bytes(1 << 24)
while True:
    held.append(os.memfd_create("held"))
    os.write(held[-1], data)
"""


def test_one_that_fills_memory_is_ended_and_nobody_else():
    host = Host(FULL)
    try:
        with little_memory(host.zygote._process.pid, 512 << 20):
            failure = failure_of(host, FILL)
        assert failure.outcome == "out_of_memory", failure.message
        assert host.run("result = 1") == 1
    finally:
        host.zygote.close()


@pytest.mark.parametrize("kind", (FULL, BARE), ids=lambda kind: kind.name)
@pytest.mark.parametrize(("kills", "outcome"), [([3, 3], "crashed"), ([3, 4], "out_of_memory")])
def test_sigkill_is_its_own_doing_and_out_of_memory_where_the_kernel_was_short_of_it(kind, kills, outcome, monkeypatch):
    host = start(kind)
    monkeypatch.setattr(process, "oom_kills", iter(kills).__next__)
    failure = failure_of(host, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert failure.outcome == outcome


# ---------------------------------------------------------------- names


@everywhere
def test_it_has_a_name_and_a_home_without_an_account(kind):
    body = """
import getpass, pathlib
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
result = [getpass.getuser(), str(pathlib.Path.home()) == os.getcwd(), "submission" in default_cache_dir()]
"""
    assert start(kind).run(body) == ["submission", True, True]


# ---------------------------------------------------------------- one that cannot be ended


def test_what_was_found_out_survives_a_candidate_that_cannot_be_ended(monkeypatch):
    for name in ("_KILL_TIMEOUT_S", "_MIN_KILL_TIMEOUT_S"):
        monkeypatch.setattr(process, name, 0.2)
    host = Host(CONTAINER)
    zygote = host.zygote._process
    try:
        with host.candidate("raise ValueError('its own')") as (candidate, _):
            with pytest.raises(SubmissionFailed, match="its own"):
                zygote.send_signal(signal.SIGSTOP)
                candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
        assert "could not be ended" in host.zygote.unfit
        zygote.send_signal(signal.SIGCONT)
        with pytest.raises(InfrastructureFault, match="zygote_lost"), host.candidate("pass"):
            pass
    finally:
        zygote.send_signal(signal.SIGCONT)
        host.zygote.close()


def test_ending_a_candidate_takes_no_longer_than_its_evaluation_has(monkeypatch):
    """A verdict that comes after the step's deadline is lost."""
    host, given_s = start(FULL), []
    end = host.zygote.kill_all
    monkeypatch.setattr(host.zygote, "kill_all", lambda timeout_s: (given_s.append(timeout_s), end(TIMEOUT_S)))
    with host.candidate("pass") as (candidate, _):
        pass
    with host.candidate("pass") as (candidate, _):
        candidate._end = 0.0
    assert given_s == [process._KILL_TIMEOUT_S, process._MIN_KILL_TIMEOUT_S]
