"""The evaluation log after a crash and over several files: nothing is lost, and no torn line hurts a reader."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import WAIT_S

from server.eval_log import EvalLog, numbered
from server.rescore import Reading, files, read, was_judged
from tests.test_rescore import CORRECT, WRONG, logged


def test_a_line_torn_by_a_crash_is_skipped_and_the_next_server_goes_on_below_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = logged(path, [CORRECT])
    path.write_bytes(path.read_bytes()[:-100])
    logged(path, [WRONG])
    reading = Reading()
    events = list(read(path, reading))
    assert (reading.lines, reading.torn) == (6, 1)
    assert len(whole) == 3
    assert [was_judged(event) for event in events] == [False, False, False, False, True]


@pytest.mark.parametrize("tail", [b"", b"\n", b"null\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100_000, b'{"event": "st'])
def test_what_is_not_an_event_is_counted(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "log"
    logged(path, [CORRECT])
    with path.open("ab") as file:
        file.write(tail)
    reading = Reading()
    assert len(list(read(path, reading))) == 3
    assert reading.torn == bool(tail)


def test_a_full_file_gets_the_next_number_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    (tmp_path / "log.jsonl.bak").write_text("not ours")
    (tmp_path / "log.jsonl.02").write_text("nor this")
    log = EvalLog(path, io.StringIO(), max_bytes=1000)
    for number in range(40):
        log.write("step", number=number, pad="x" * 150)
    log.write("step", number=40, pad="x" * 3000)  # larger than a file may be: it has one for itself
    log.write("step", number=41)
    log.close()
    full = numbered(path)
    assert [number for number, _ in full] == list(range(1, len(full) + 1))
    assert len(full) > 9
    sizes = [file.stat().st_size for file in files(path)]
    assert sum(size > 1000 for size in sizes) == 1
    assert [event["number"] for file in files(path) for event in read(file, Reading())] == list(range(42))
    assert log.dropped == 0


def test_no_limit_never_rotates(tmp_path: Path) -> None:
    log = EvalLog(tmp_path / "log", io.StringIO())
    for _ in range(50):
        log.write("step", pad="x" * 1000)
    assert files(tmp_path / "log") == [tmp_path / "log"]


def test_a_log_that_cannot_be_renamed_keeps_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError("no renaming here")

    monkeypatch.setattr(os, "rename", refuse)
    log = EvalLog(tmp_path / "log", io.StringIO(), max_bytes=100)
    for number in range(5):
        log.write("step", number=number, pad="x" * 100)
    assert [event["number"] for event in read(tmp_path / "log", Reading())] == list(range(5))
    assert log.dropped == 0
    assert capsys.readouterr().err.count("cannot be rotated") == 1


def test_a_server_follows_the_rotation_of_another(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first, second = (EvalLog(path, io.StringIO(), max_bytes=400) for _ in range(2))
    for number in range(3):
        first.write("step", number=number, pad="x" * 100)
    assert len(files(path)) == 2
    second.write("step", number=3)  # it still has log.1 open, which is full
    assert len(files(path)) == 2
    assert [event["number"] for event in read(path, Reading())] == [2, 3]
    second.write("step", number=4, pad="x" * 100)
    first.write("step", number=5, pad="x" * 100)
    assert len(files(path)) == 3
    assert [event["number"] for event in read(path, Reading())] == [4, 5]


# A process of its own that imports little, and begins when it is told to.
_WRITER = """
import io, sys
from pathlib import Path
from server.eval_log import EvalLog
path, writer, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = EvalLog(Path(path), io.StringIO(), max_bytes=2000)
sys.stdin.readline()
for number in range(count):
    log.write("step", writer=writer, number=number, pad="x" * 200)
log.close()
assert log.dropped == 0
"""


def test_several_servers_may_rotate_one_log(tmp_path: Path) -> None:
    path, count = tmp_path / "log", 300
    with contextlib.ExitStack() as running:
        writers = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _WRITER, str(path), str(writer), str(count)],
                    stdin=subprocess.PIPE,
                    cwd=Path(__file__).parents[1],
                )
            )
            for writer in range(3)
        ]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
        assert [writer.wait(WAIT_S) for writer in writers] == [0, 0, 0]
    reading = Reading()
    events = [event for file in files(path) for event in read(file, reading)]
    assert (len(events), reading.torn) == (3 * count, 0)
    assert {(event["writer"], event["number"]) for event in events} == {(w, n) for w in range(3) for n in range(count)}
    assert len(files(path)) > 10
