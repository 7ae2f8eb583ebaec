"""benchmarks/soak.py at a small scale: a server whose parts are killed accounts for every step; what it would see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_pool import NEEDS_CPU_EVALUATOR

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from benchmarks.soak import Entry  # noqa: E402
from benchmarks.soak_report import account, leaks, misjudged  # noqa: E402

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run(out: Path, *arguments: str) -> None:
    """The program with these arguments; it judges itself."""
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@NEEDS_CPU_EVALUATOR
@pytest.mark.timeout(900)
def test_a_server_whose_parts_are_killed_answers_every_step_once(tmp_path: Path) -> None:
    run(tmp_path, "--evaluator", "cpu", "--sessions", "24", "--seconds", "45", "--every", "5")


@LINUX
def test_many_sessions_of_the_mock_evaluator(tmp_path: Path) -> None:
    run(tmp_path, "--evaluator", "mock", "--sessions", "256", "--seconds", "15", "--every", "2")


# ---------------------------------------------------------------- what it would see

_SEEN = {"outcome": "scored", "stage": "scored", "feedback": "", "phase_seconds": {"total": 1.5}, "turn": 1}
ANSWER: dict[str, Any] = {**_SEEN, "reward": 0.7, "infra_code": None, "t_new_ms": 1.0, "t_ref_ms": 2.0}


def entry(kind: str = "good", state: str = "answered", **answer: Any) -> Entry:
    return Entry(kind, "nonce", "hash", 1.0, state, 2.0, answer={**ANSWER, **answer} if state == "answered" else {})


def line(**fields: Any) -> dict[str, Any]:
    return {"event": "step", "code_sha256": "hash", **ANSWER, **fields}


def test_a_step_is_accounted_for_exactly_once() -> None:
    assert account([entry()], [line()]) == ({"judged": 1}, [])
    assert account([entry(state="vanished")], [line(infra_code="cancelled")]) == ({"cancelled": 1}, [])
    begun = entry(state="vanished")
    begun.began = True
    for entries, lines in (
        ([entry()], []),
        ([entry()], [line(), line()]),
        ([entry()], [line(phase_seconds={"total": 1.6})]),  # another step's answer
        ([entry()], [line(), line(code_sha256="another")]),
        ([entry(state="lost")], [line()]),
        ([entry(state="open")], [line()]),
        ([begun], []),
    ):
        assert account(entries, lines)[1], (entries, lines)


@pytest.mark.parametrize(
    ("kind", "reward", "infra_code", "wrong"),
    [
        ("good", 0.7, None, False),
        ("good", None, "worker_lost", False),
        ("good", 0.0, None, True),
        ("good", 0.0, "worker_lost", True),
        ("good", None, None, True),
        ("wrong", 0.0, None, False),
        ("wrong", 0.3, None, True),
        ("kills itself", None, "worker_lost", False),
        ("kills itself", 0.5, None, True),
    ],
)
def test_a_wrong_reward_is_seen(kind: str, reward: float | None, infra_code: str | None, wrong: bool) -> None:
    assert (misjudged(entry(kind, reward=reward, infra_code=infra_code), mock=False) is not None) is wrong


def test_a_leak_is_seen() -> None:
    def result(**after: Any) -> dict[str, Any]:
        sample: dict[str, Any] = {
            role: {"rss": 100.0, "fds": 5, "threads": 2} for role in ("server", "judges", "zygotes")
        }
        sample |= {"processes": {"judges": 1}, "strangers": [], "directories of judges": 1, "other files": []}
        sample |= {"submissions' directories": 0}
        end = {"sessions": {"open": 0}, "queue_depth": 0, "leases": [{"holders": {"0": "out"}}]}
        found = {name: value for name, value in after.items() if name in end}
        changed = {name: value for name, value in after.items() if name not in end}
        return {"before": {"sample": sample}, "after": {**end, **found, "sample": {**sample, **changed}}}

    assert leaks(result()) == []
    for more in (
        {"server": {"rss": 300.0, "fds": 5, "threads": 2}},
        {"judges": {"rss": 100.0, "fds": 6, "threads": 2}},
        {"strangers": ["sleep"]},
        {"other files": ["core"]},
        {"submissions' directories": 1},
        {"directories of judges": 2},
        {"processes": {"judges": 2}},
        {"sessions": {"open": 1}},
        {"queue_depth": 1},
        {"leases": [{"holders": {"0": "alone"}}]},
    ):
        assert leaks(result(**more)), more
