"""benchmarks/soak.py at a small scale: a server whose parts are killed accounts for every step; what it would see."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, ScriptedEvaluator, as_mock, make_settings, serve

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.models import KernelAction, Outcome
from server.evaluator import EvalResult
from server.worker.protocol import Evaluate
from tests.cpu_pool import AVAILABLE, NEEDS_CPU_EVALUATOR

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from benchmarks.soak_causes import Record, causes, excused  # noqa: E402
from benchmarks.soak_crowd import Entry  # noqa: E402
from benchmarks.soak_report import account, explain, leaks, misjudged  # noqa: E402

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
# How long one may take in all: to start, to warm up, 120 s, as much again to see every kind, and the last steps.
SOAK_S = 900


@dataclass
class Soak:
    """The program, running."""

    process: subprocess.Popen[str]
    output: Path

    def passes(self) -> None:
        """Wait for it; it judges itself."""
        code = self.process.wait(SOAK_S)
        assert code == 0, self.output.read_text(errors="replace")[-8000:]


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Soak]]:
    """Both at the same time: most of what they do is to wait."""
    out = tmp_path_factory.mktemp("soak")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found: dict[str, Soak] = {}
    try:
        for evaluator in ("cpu", "mock") if AVAILABLE else ("mock",):
            arguments = ["--evaluator", evaluator, "--out", str(out / evaluator)]
            command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), *arguments, "--seconds", "120"]
            output = out / f"{evaluator}.txt"
            with output.open("w") as sink:
                process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, text=True, env=environment)
            found[evaluator] = Soak(process, output)
        yield found
    finally:
        for soak in found.values():
            soak.process.terminate()  # it ends its server then
        for soak in found.values():
            soak.process.wait(WAIT_S)


@LINUX
@pytest.mark.timeout(SOAK_S + WAIT_S)
def test_a_step_of_150_s_arrives(soaks: dict[str, Soak]) -> None:
    """Beside the others, because it only waits. OpenEnv's own pings would have ended a session by then that does not
    answer."""

    async def slow(request: Evaluate) -> EvalResult:
        await asyncio.sleep(150.0)
        return await as_mock(request)

    began = time.monotonic()
    with serve(make_settings(), ScriptedEvaluator(slow)) as url, KernelEnv(url).sync() as env:
        env.reset(task_id="level1/23_Softmax")
        assert env.step(KernelAction(code=demo_kernels.GOOD)).observation.outcome is Outcome.SCORED
        assert time.monotonic() - began >= 150.0
        assert env.state().step_count == 1


@LINUX
@pytest.mark.timeout(SOAK_S + WAIT_S)
def test_many_sessions_of_the_mock_evaluator(soaks: dict[str, Soak]) -> None:
    soaks["mock"].passes()


@NEEDS_CPU_EVALUATOR
@pytest.mark.timeout(SOAK_S + WAIT_S)
def test_a_server_whose_parts_are_killed_answers_every_step_once(soaks: dict[str, Soak]) -> None:
    soaks["cpu"].passes()


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
    assert (misjudged(entry(kind, reward=reward, infra_code=infra_code), mock=False, records=[]) is not None) is wrong


# ---------------------------------------------------------------- causes


def record(kind: str, began: float = 10.0, ended: float = 10.0, nonces: tuple[str, ...] = ()) -> Record:
    return {"kind": kind, "began": began, "ended": ended, "hit": True, "nonces": list(nonces)}


JUDGE = record("judge killed", nonces=("nonce",))
ELSEWHERE = record("judge killed", nonces=("another",))
IDLE = record("judge killed")
EARLIER = record("judge killed", began=1.0, ended=2.0, nonces=("nonce",))
ZYGOTE = record("zygote stopped", ended=14.0, nonces=("nonce",))
CANDIDATE = record("candidate killed", nonces=("nonce",))
COMPILER = record("compiler killed", nonces=("nonce",))
NO_COMPILER = record("compiler missing", ended=16.0)
LOST = {"infra_code": "worker_lost", "attempts": 2}


@pytest.mark.parametrize(
    ("line", "records", "found"),
    [
        ({"infra_code": None, "attempts": 1}, [], []),
        ({"infra_code": "cancelled", "attempts": 1}, [], []),
        (LOST, [], None),
        (LOST, [JUDGE], None),  # it was tried twice
        (LOST, [JUDGE, JUDGE], ["judge killed"]),
        (LOST, [JUDGE, IDLE], ["judge killed"]),
        (LOST, [JUDGE, ELSEWHERE], None),
        (LOST, [JUDGE, EARLIER], None),
        (LOST, [JUDGE, {**IDLE, "hit": False}], None),
        (LOST, [JUDGE, ZYGOTE], ["judge killed", "zygote stopped"]),
        (LOST, [IDLE, NO_COMPILER], ["judge killed"]),
        (LOST, [ZYGOTE, ZYGOTE], None),  # which would have been zygote_lost
        (LOST, [record("cache unwritable", ended=16.0)], None),
        (LOST, [JUDGE, JUDGE, IDLE, CANDIDATE], ["candidate killed", "judge killed"]),
        ({**LOST, "phase_seconds": {"queue": 8.0}}, [JUDGE, JUDGE], None),  # it waited then
        ({**LOST, "attempts": 3}, [JUDGE, IDLE], None),
        ({**LOST, "attempts": 3}, [CANDIDATE, JUDGE, IDLE], ["candidate killed", "judge killed"]),
        ({"infra_code": "compiler_missing", "attempts": 2}, [NO_COMPILER], ["compiler missing"]),
        ({"infra_code": "queue_timeout", "attempts": 1}, [NO_COMPILER], None),
        ({"infra_code": "queue_timeout", "attempts": 1}, [ELSEWHERE], ["judge killed"]),
        ({"infra_code": None, "attempts": 2}, [], None),  # what was it that it was tried twice for?
        ({"infra_code": None, "attempts": 2}, [ELSEWHERE], None),
        ({"infra_code": None, "attempts": 2}, [COMPILER], ["compiler killed"]),
    ],
)
def test_a_fault_has_a_cause_that_was_injected_then_and_there(
    line: dict[str, Any], records: list[Record], found: list[str] | None
) -> None:
    step = Entry("good", "nonce", "hash", sent=5.0, ended=20.0)
    assert causes(step, line, 20.0, records) == found


def test_a_step_without_a_cause_is_named() -> None:
    lost = line(infra_code="worker_lost", attempts=2, time="1970-01-01T00:00:20+00:00")
    step = Entry("good", "nonce", "hash", 5.0, "vanished", 6.0)
    assert explain([step], [lost], [JUDGE, IDLE]) == ({"worker_lost: judge killed": 1}, [])
    assert explain([step], [lost], [])[1][0].startswith("good nonce: worker_lost")


@pytest.mark.parametrize(
    ("outcome", "records", "excuse"),
    [
        ("compile_error", [COMPILER], False),
        ("compile_error", [COMPILER, COMPILER], True),
        ("compile_error", [COMPILER, CANDIDATE], True),
        ("compile_error", [CANDIDATE, CANDIDATE], False),
        ("compile_error", [COMPILER, record("compiler killed", nonces=("another",))], False),
        ("crashed", [CANDIDATE, CANDIDATE], True),
        ("crashed", [JUDGE, JUDGE], False),
        ("wrong_values", [CANDIDATE, CANDIDATE], False),
    ],
)
def test_a_right_kernel_may_be_paid_0_only_where_it_was_killed_twice(
    outcome: str, records: list[Record], excuse: bool
) -> None:
    answer = {**ANSWER, "reward": 0.0, "outcome": outcome}
    step = Entry("good C++", "nonce", "hash", 5.0, "answered", 20.0, answer=answer)
    assert excused(step, 20.0, records) is excuse
    assert (misjudged(step, mock=False, records=records) is None) is excuse


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
