"""The kit's place, its maker's life, and that no candidate can write to it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("needs Linux", allow_module_level=True)

from server.text import scrub_paths
from server.worker import extension_kit
from server.worker.extension_kit import Kit
from server.worker.process import Zygote
from tests import sandbox_hosts
from tests.conftest import WAIT_S
from tests.sandbox_hosts import BARE, SAME_UID, UNPRIVILEGED, USER, Host, HostKind, popen_on


def test_nothing_before_it_is_ready_and_for_who_could_write_to_it(tmp_path: Path) -> None:
    assert extension_kit.environment(str(tmp_path)) == extension_kit.compilers(str(tmp_path)) == {}
    (tmp_path / extension_kit.READY).touch()
    assert extension_kit.compilers(str(tmp_path)) == {"CXX": str(tmp_path / "bin" / "g++")}
    assert extension_kit.environment(str(tmp_path)) == {}


def test_judges_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    jobs = [extension_kit.for_zygote(None, judges) for judges in (1, 3, 8, 40)]
    assert jobs == [{"MAX_JOBS": number} for number in ("16", "5", "2", "1")]
    monkeypatch.setenv("MAX_JOBS", "3")
    assert extension_kit.for_zygote(None, 8) == {"MAX_JOBS": "3"}


def test_unused_kits_are_removed_and_used_ones_kept(tmp_path: Path) -> None:
    ours, used, old = (tmp_path / f"extension-kit-{name}" for name in ("ours", "used", "old"))
    other = tmp_path / "baselines"
    for directory in (ours, old, other):
        (directory / "bin").mkdir(parents=True)
    handle = extension_kit._hold(used)
    extension_kit.remove_unused(ours)
    assert sorted(tmp_path.iterdir()) == sorted([ours, used, other])
    os.close(handle)
    extension_kit.remove_unused(ours)
    assert sorted(tmp_path.iterdir()) == sorted([ours, other])


def test_a_kit_that_was_removed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "extension-kit-a"
    locked = []

    def remove_first(handle: int, operation: int) -> None:
        if not locked:
            shutil.rmtree(directory)
        locked.append(operation)

    monkeypatch.setattr(extension_kit.fcntl, "flock", remove_first)
    handle = extension_kit._hold(directory)
    assert len(locked) == 2 and os.path.samestat(os.fstat(handle), directory.stat())
    os.close(handle)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_roots_kit_lies_where_candidates_may_pass(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert extension_kit._open_to_candidates(closed / "cache") == Path("/var/cache/kernel_env")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        assert extension_kit._open_to_candidates(Path(name)) == Path(name)


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Kit, int]]:
    """A kit whose maker waits for a compiler that never ends, and a pipe that the compiler holds open."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    compiler = tmp_path / "g++"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo Free Software Foundation\nexec sleep 1000 > "{pipe}"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("KERNEL_ENV_TEST_PIPE", str(pipe))
    monkeypatch.setattr(extension_kit, "_open_to_candidates", lambda cache: cache)
    monkeypatch.setattr(extension_kit, "_PROGRAMS", ())
    # The compilers' commands are not watched here: one is enough.
    program = tmp_path / "run" / "sitecustomize.py"
    program.parent.mkdir()
    program.write_text(
        "from server.worker import extension_build\nextension_build.record_commands = lambda tools: {'g++': []}\n"
    )
    monkeypatch.syspath_prepend(str(program.parent))
    kit = Kit(tmp_path / "cache", "9.0")
    reading = os.open(pipe, os.O_RDONLY)  # waits until the compiler runs
    yield kit, reading
    os.close(reading)
    if kit.maker.returncode is None:
        kit.close()


def test_one_maker_is_enough_and_ends_with_its_compilers_when_the_kit_is_closed(
    hung: tuple[Kit, int], tmp_path: Path
) -> None:
    kit, reading = hung
    other = Kit(tmp_path / "cache", "9.0")
    assert other.directory == kit.directory
    assert other.maker.wait(WAIT_S) == 0
    other.close()
    assert kit.maker.poll() is None
    kit.close()
    assert kit.maker.returncode == -9
    assert os.read(reading, 1) == b""


def test_the_end_of_a_judge_ends_the_maker_and_the_compilers(hung: tuple[Kit, int]) -> None:
    kit, reading = hung
    assert kit.maker.stdin is not None
    kit.maker.stdin.close()
    assert kit.maker.wait(WAIT_S) == -9
    assert os.read(reading, 1) == b""


def test_feedback_names_the_real_compilers(hung: tuple[Kit, int]) -> None:
    kit, _ = hung
    output = f"[1/2] {kit.directory}/bin/nvcc -c a.cu\nIn file included from {kit.directory}/light/torch/types.h:3"
    assert scrub_paths(output, kit.readable_names()) == (
        "[1/2] nvcc -c a.cu\nIn file included from <kit>/light/torch/types.h:3"
    )


# ---------------------------------------------------------------- candidates


def _user_without_landlock() -> None:
    sandbox_hosts._open_python()
    sandbox_hosts._without_landlock()
    sandbox_hosts._become_user()


class KitHost(Host):
    """A host with a kit in `directory`, which belongs to the judge's user."""

    def __init__(self, kind: HostKind, directory: str) -> None:
        self.kind = kind
        with popen_on(kind):
            self.zygote = Zygote("cpu", None, {extension_kit.VARIABLE: directory})
            self.zygote.wait_ready()
        self.uid = kind.uid if self.zygote.uid is None else self.zygote.uid


_BODY = """
def works(call):
    try:
        call()
    except OSError:
        return False
    return True
result = {
    "CXX": os.environ.get("CXX"),
    "variable": "KERNEL_ENV_EXTENSION_KIT" in os.environ,
    "read": works(lambda: open(kit + "/bin/g++").read()),
    "wrote": [
        works(call)
        for call in (
            lambda: open(kit + "/bin/g++", "a"),
            lambda: open(kit + "/bin/new", "w"),
            lambda: os.unlink(kit + "/ready"),
            lambda: os.rename(kit + "/bin", kit + "/bin2"),
            lambda: os.rename(kit, kit + "2"),
        )
    ],
}
"""


OPEN = HostKind("open", "same-uid+mount+net+ipc+seccomp", _user_without_landlock, USER)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("kind", "place", "given"),
    [
        (BARE, "/tmp", True),
        (SAME_UID, "/tmp", True),
        (UNPRIVILEGED, "/var/tmp", True),
        (OPEN, "/var/tmp", False),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_candidate_reads_it_and_does_not_write_to_it(kind: HostKind, place: str, given: bool) -> None:
    with tempfile.TemporaryDirectory(dir=place) as name:
        os.chmod(name, 0o755)
        kit = Path(name, "kit")
        (kit / "bin").mkdir(parents=True)
        (kit / "ready").touch()
        (kit / "bin" / "g++").write_text("#!/bin/sh\n")
        if not given:
            (kit / "ready").chmod(0o444)  # by the submission before, which could
        for path in (kit, kit / "bin", kit / "ready", kit / "bin" / "g++"):
            os.chown(path, kind.uid, kind.uid)
        host = KitHost(kind, str(kit))
        try:
            if host.zygote.sandbox != kind.level:
                pytest.skip(f"this machine gives {host.zygote.sandbox}")
            found = host.run(_BODY, kit=str(kit))
        finally:
            host.zygote.close()
        assert isinstance(found, dict)
        assert (found["CXX"], found["variable"]) == (str(kit / "bin" / "g++") if given else None, False)
        assert found["wrote"] == [False] * 5 or not given
        assert found["read"] is True
