"""A compiler that somebody ends: the submission is tried once more, and only what comes again is its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.worker.ended import ended_by, sent_by_somebody
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, Pool, open_pool, until
from tests.test_faults_matrix import scoring

# A compiler is busy with it for a second or more, and what it makes is no Python module.
SLOW_CPP = '''\
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
constexpr int part() { int s = 0; for (int i = 0; i < 250000; ++i) s ^= i; return s; }
constexpr int sum() { int s = 0; for (int i = 0; i < 25; ++i) s ^= part() + i; return s; }
static_assert(sum() > -1);
"""

extension = load_inline(name="slow_cpp", cpp_sources=SOURCE, no_implicit_headers=True)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.relu(x.contiguous())
'''


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool() as opened:
        yield opened


def compiler(pool: Pool) -> int | None:
    """The process that compiles C++, while there is one."""
    for pid in pool.processes():
        try:
            if Path(f"/proc/{pid}/comm").read_text() == "cc1plus\n":
                return pid
        except OSError:
            continue
    return None


@NEEDS_CPU_EVALUATOR
@pytest.mark.parametrize(("kills", "outcome"), [(1, "import_error"), (2, "compile_error")])
def test_a_compiler_that_is_killed_once_is_not_the_submissions_fault(pool: Pool, kills: int, outcome: str) -> None:
    with scoring(pool, SLOW_CPP, task_id="level1/19_ReLU", language="cuda") as result:
        last = None
        for _ in range(kills):
            last = until(lambda: (pid := compiler(pool)) != last and pid)  # noqa: B023
            os.kill(last, signal.SIGKILL)
        found = result.result(240.0)
    assert (found.verdict.outcome, found.verdict.infra_code, found.attempts) == (outcome, None, 2), found.verdict
    assert [earlier.signal for earlier in found.retried] == [signal.SIGKILL]


# ---------------------------------------------------------------- by what it is told


def part(directory: Path, name: str, number: int) -> None:
    """A part of a compiler that ends itself."""
    (directory / name).write_text(f"#!/bin/sh\nkill -{number} $$\nsleep 60\n")
    (directory / name).chmod(0o755)


def failure(command: list[str], cwd: Path) -> Exception:
    """What PyTorch raises when a command that builds an extension fails."""
    try:
        subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.CalledProcessError as error:
        message = "Error building extension 'x': " + error.output.decode()
        try:
            raise RuntimeError(message) from error
        except RuntimeError as raised:
            return raised
    raise AssertionError("it did not fail")


@pytest.mark.skipif(sys.platform != "linux", reason="g++ of Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", ["cc1plus", "as", "ld"])
def test_a_part_of_gcc_that_was_killed_is_seen(name: str, number: int, tmp_path: Path) -> None:
    part(tmp_path, name, number)
    (tmp_path / "a.cpp").write_text("int main() { return 0; }\n")
    assert ended_by(failure(["g++", "-B", str(tmp_path), "a.cpp"], tmp_path)) == number


@pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_was_killed_is_seen(number: int, tmp_path: Path) -> None:
    part(tmp_path, "driver", number)
    assert ended_by(failure(["./driver"], tmp_path)) == number
    assert ended_by(failure(["sh", "-c", "./driver; exit $?"], tmp_path)) == number


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_compiler_that_ninja_saw_die_is_seen(number: int, tmp_path: Path) -> None:
    part(tmp_path, "driver", number)
    (tmp_path / "build.ninja").write_text("rule c\n  command = ./driver\nbuild a.o: c\n")
    assert sent_by_somebody(ended_by(failure(["ninja"], tmp_path))) is not None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 9),
        ("Internal Triton PTX codegen error\n`ptxas` failed with error code -15", 15),
        ("Command '['/usr/bin/gcc', 'main.c']' died with <Signals.SIGKILL: 9>.", 9),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", 11),
        ("main.cpp:3:5: error: expected ';' before 'Killed'", None),
        ("[1/2] c++ main.cpp\nFAILED: [code=1] main.o \nc++ main.cpp\nmain.cpp:1:1: error\nninja: build stopped", None),
        ("[1/2] c++ main.cpp\nFAILED: main.o \nc++ main.cpp\nninja: build stopped: subcommand failed.\n", 9),
        ("`ptxas` failed with error code 255", None),
    ],
)
def test_what_compilers_say_of_a_signal(text: str, number: int | None) -> None:
    assert ended_by(RuntimeError(text)) == number


def test_an_error_that_came_of_one_that_was_killed_is_seen_and_a_ring_of_errors_ends() -> None:
    error = RuntimeError("no extension")
    error.__context__ = subprocess.CalledProcessError(-9, "ninja")
    assert ended_by(error) == signal.SIGKILL
    ring = RuntimeError("a")
    ring.__context__ = RuntimeError("b")
    ring.__context__.__context__ = ring
    assert ended_by(ring) is None


def test_a_compilers_own_crash_is_believed_at_once() -> None:
    assert sent_by_somebody(signal.SIGSEGV) is None
    assert sent_by_somebody(signal.SIGTERM) == signal.SIGTERM
