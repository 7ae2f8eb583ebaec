"""Log lines: their form, concurrent writers, and sinks that fail."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import pytest

from server.eval_log import EvalLog

needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")


class Colour(StrEnum):
    RED = "red"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def only_line(stream: io.StringIO) -> dict[str, Any]:
    text = stream.getvalue()
    assert text.endswith("\n") and text.count("\n") == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_line_goes_to_the_stream_and_to_the_file(tmp_path: Path) -> None:
    path, stream = tmp_path / "log.jsonl", io.StringIO()
    path.write_text('{"event": "earlier"}\n')
    log = EvalLog(path, stream)
    log.write("step", task_id="level1/19_ReLU", reward=1.3, turn=2, code="é\n")
    log.close()
    record = only_line(stream)
    assert datetime.fromisoformat(record.pop("time")).utcoffset() is not None
    assert record == {"event": "step", "task_id": "level1/19_ReLU", "reward": 1.3, "turn": 2, "code": "é\n"}
    assert path.read_text(encoding="utf-8") == '{"event": "earlier"}\n' + stream.getvalue()


def test_the_stream_defaults_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    EvalLog(None).write("reset", seed=0)
    assert json.loads(capfd.readouterr().out)["event"] == "reset"


def test_values_json_cannot_hold_are_made_safe() -> None:
    stream = io.StringIO()
    EvalLog(None, stream).write(
        "step",
        nan=math.nan,
        inf=[math.inf, {"deep": -math.inf}],
        surrogate="a\ud800\x00",
        enum=Colour.RED,
        path=Path("x") / "y",
        pair=(1, True),
        none=None,
        time="mine",
        **{"\udfff": 1},
    )
    record = only_line(stream)
    assert datetime.fromisoformat(record.pop("time"))
    assert record == {
        "event": "step",
        "nan": None,
        "inf": [None, {"deep": None}],
        "surrogate": "a\ufffd\ufffd",
        "enum": "red",
        "path": "x/y",
        "pair": [1, True],
        "none": None,
        "\ufffd": 1,
    }


def test_long_strings_lose_their_middle_and_deep_values_end() -> None:
    nested: list[Any] = []
    nested.append(nested)
    stream = io.StringIO()
    EvalLog(None, stream).write("step", feedback="a" * 50_000 + "z" * 50_000, nested=nested)
    feedback = only_line(stream)["feedback"]
    assert 8100 < len(feedback) <= 8192
    assert feedback.startswith("aaa") and feedback.endswith("zzz") and "characters cut" in feedback


def test_a_value_that_cannot_be_printed_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    log = EvalLog(None, stream)
    log.write("bad", value=Unprintable())
    log.write("good")
    assert only_line(stream)["event"] == "good"
    assert log.dropped == 1
    assert "no text" in capsys.readouterr().err


def test_concurrent_writers_do_not_tear_lines(tmp_path: Path) -> None:
    path, lines, threads = tmp_path / "log.jsonl", 50, 4
    # Two logs on one file, as two server processes would have.
    logs = [EvalLog(path, io.StringIO()) for _ in range(2)]
    start = threading.Barrier(threads)

    def work(index: int) -> None:
        start.wait()
        for number in range(lines):
            logs[index % 2].write("step", writer=index, number=number, pad="x" * 3000)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == threads * lines
    for index in range(threads):
        assert [r["number"] for r in records if r["writer"] == index] == list(range(lines))
    assert logs[0].dropped == logs[1].dropped == 0


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EvalLog(tmp_path / "log.jsonl", io.StringIO())
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda descriptor, data: written.append(bytes(data)) or len(data))
    log.write("step", pad="x" * 8000)
    log.write("step")
    assert len(written) == 2 and all(line.endswith(b"}\n") for line in written)


def test_a_pipe_that_nobody_reads_loses_lines_and_holds_up_nothing() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe, open(writer, "w") as stream:
        log = EvalLog(None, stream)
        written = 0
        while not log.dropped:
            log.write("step", number=written, pad="x" * 1500)
            written += 1
        log.write("step")
        assert log.dropped == 2
        os.set_blocking(reader, False)
        read = pipe.read() or b""
        log.write("last")
        lines = (read + (pipe.read() or b"")).splitlines()
    assert [json.loads(line)["number"] for line in lines[: written - 1]] == list(range(written - 1))
    # What was cut off ends before the next line begins.
    assert json.loads(lines[-1])["event"] == "last"


@needs_dev_full
def test_a_full_disk_is_counted_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    log = EvalLog(Path("/dev/full"), stream)
    for _ in range(3):
        log.write("step")
    assert log.dropped == 3
    assert stream.getvalue().count("\n") == 3
    assert capsys.readouterr().err.count("dropped") == 1


@needs_dev_full
def test_a_full_disk_behind_stdout_costs_the_file_nothing(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        log = EvalLog(tmp_path / "log.jsonl", full)
        log.write("step")
        log.close()
    assert log.dropped == 1
    assert json.loads((tmp_path / "log.jsonl").read_text())["event"] == "step"


def test_a_line_cut_short_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    log = EvalLog(path, io.StringIO())
    real_write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:10]))
        log.write("first")
    log.write("second")
    log.write("third")
    lines = path.read_text().splitlines()
    assert len(lines[0]) == 10
    assert [json.loads(line)["event"] for line in lines[1:]] == ["second", "third"]
    assert log.dropped == 1


@pytest.fixture
def broken_pipe() -> Iterator[TextIO]:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        yield stream


def test_a_broken_pipe_is_counted_and_leaves_nothing_behind(
    broken_pipe: TextIO, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EvalLog(None, broken_pipe)
    log.write("step")
    log.write("step")
    broken_pipe.flush()  # raises if a line were still in the buffer
    assert log.dropped == 2
    assert "BrokenPipe" in capsys.readouterr().err


def test_a_closed_stream_and_a_closed_stderr_do_not_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, errors = io.StringIO(), io.StringIO()
    stream.close()
    errors.close()
    monkeypatch.setattr(sys, "stderr", errors)
    log = EvalLog(None, stream)
    log.write("step")
    assert log.dropped == 1


def test_closing_twice_then_writing_uses_the_stream_alone(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = EvalLog(tmp_path / "log.jsonl", stream)
    log.close()
    log.close()
    log.write("step")
    assert only_line(stream)["event"] == "step"
    assert (tmp_path / "log.jsonl").read_text() == ""
    assert log.dropped == 0


def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        EvalLog(tmp_path / "missing" / "log.jsonl")
