"""Real evaluations without a GPU: a server with the cpu evaluator, the real client, one submission after the other.

All tests share one server and its one worker, so each of them also shows that the one before left nothing behind.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, make_settings, serve
from openenv.core.sync_client import SyncEnvClient

from kernel_env.client import KernelEnv
from kernel_env.models import KernelAction, Outcome, Stage
from server.settings import Settings
from tests.cpu_pool import NEEDS_CPU_EVALUATOR
from tests.cpu_submissions import BAD, BROKEN_CPP, GOOD, RELU_CPP, TASK, Bad

pytestmark = NEEDS_CPU_EVALUATOR

EXAMPLE = Path(__file__).parents[1] / "examples" / f"{TASK}.py"


@pytest.fixture(scope="module")
def cpu_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Short deadlines, so that endless submissions end soon."""
    log = tmp_path_factory.mktemp("log") / "eval.jsonl"
    return make_settings(
        evaluator="cpu", max_turns=3, compile_timeout_s=3.0, run_timeout_s=2.0, timed_runs=3, eval_log=log
    )


@pytest.fixture(scope="module")
def cpu_server(cpu_settings: Settings) -> Iterator[str]:
    """One server with the cpu evaluator for the module."""
    with serve(cpu_settings) as url:
        yield url


@pytest.fixture
def env(cpu_server: str) -> Iterator[SyncEnvClient[Any, Any, Any]]:
    """A fresh session."""
    with KernelEnv(cpu_server).sync() as client:
        yield client


def worker_status(url: str) -> dict[str, Any]:
    """The only worker's part of /status."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/status", timeout=WAIT_S) as response:
        workers = json.load(response)["workers"]
    assert len(workers) == 1
    return workers[0]


def test_a_correct_triton_softmax_is_paid(env: SyncEnvClient[Any, Any, Any], cpu_settings: Settings) -> None:
    reset = env.reset(task_id=TASK)
    assert reset.observation.evaluator == "cpu"
    result = env.step(KernelAction(code=EXAMPLE.read_text()))
    observation = result.observation
    assert (observation.stage, observation.outcome) == (Stage.SCORED, Outcome.SCORED), observation.feedback
    assert result.reward is not None and result.reward > 0
    assert (observation.compiled, observation.correct) == (True, True)
    assert observation.trials_passed == observation.trials_total
    assert observation.trials_total is not None and observation.trials_total > cpu_settings.trials
    assert observation.max_abs_error is not None and observation.max_abs_error < 1e-6
    assert observation.t_ref_ms is not None and observation.t_new_ms is not None
    assert observation.speedup == pytest.approx(observation.t_ref_ms / observation.t_new_ms)
    assert observation.kernel_time_fraction is not None and 0.0 <= observation.kernel_time_fraction <= 1.0
    assert (observation.sm_clock_mhz, observation.throttled) == (None, [])
    assert observation.timing_method in ("event", "wall")
    # The machine has no datasheet peaks.
    assert (observation.bound, observation.t_min_ms, observation.roofline_frac) == (None, None, None)
    assert {"static", "compile", "correctness", "timing", "queue", "total"} <= observation.phase_seconds.keys()
    assert not result.done
    assert cpu_settings.eval_log is not None
    logged = json.loads(cpu_settings.eval_log.read_text().splitlines()[-1])
    assert (logged["outcome"], logged["reward"]) == ("scored", result.reward)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_what_a_bad_submission_is_told_and_that_the_next_one_is_scored(
    env: SyncEnvClient[Any, Any, Any], cpu_server: str, bad: Bad
) -> None:
    env.reset(task_id=TASK)
    result = env.step(KernelAction(code=bad.code))
    observation = result.observation
    assert (observation.stage, observation.outcome) == (bad.stage, bad.outcome), observation.feedback
    assert result.reward == 0.0
    assert not observation.correct
    missing = [word for word in bad.words if word not in observation.feedback]
    assert not missing, observation.feedback
    assert "server/" not in observation.feedback, "it quotes our own code"
    after = env.step(KernelAction(code=GOOD))
    assert (after.observation.stage, after.observation.outcome) == (Stage.SCORED, Outcome.SCORED)
    assert after.reward is not None and after.reward > 0
    assert worker_status(cpu_server)["faults"] == 0, "a bad kernel is no fault of ours"


def test_every_failure_has_its_own_outcome() -> None:
    """The issue's list: none of these may be told as another."""
    named = [
        "wrong values",
        "wrong shape",
        "NaN",
        "infinite loop",
        "crash by signal",
        "os._exit",
        "100 MB of stdout",
        "syntax error",
        "import error",
        "out of memory",
        "missing ModelNew",
        "torch fallback",
    ]
    outcomes = [(BAD[name].stage, BAD[name].outcome) for name in named]
    assert len(set(outcomes)) == len(named)


def test_what_a_dying_submission_printed_is_shown(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK)
    code = BAD["os._exit"].code.replace("os._exit(0)", 'print("the last words", flush=True), os._exit(0)')
    assert "the last words" in env.step(KernelAction(code=code)).observation.feedback


@pytest.fixture
def patient(cpu_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for a C++ compiler."""
    if not (shutil.which("g++") and shutil.which("ninja")):
        pytest.skip("needs g++ and ninja")
    monkeypatch.setattr(cpu_settings, "compile_timeout_s", 240.0)


@pytest.mark.usefixtures("patient")
def test_a_cpp_extension_is_paid(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id="level1/19_ReLU", language="cuda")
    result = env.step(KernelAction(code=RELU_CPP))
    assert result.observation.outcome is Outcome.SCORED, result.observation.feedback
    assert result.reward is not None and result.reward > 0


@pytest.mark.usefixtures("patient")
def test_a_cpp_error_is_shown(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id="level1/19_ReLU", language="cuda")
    observation = env.step(KernelAction(code=BROKEN_CPP)).observation
    assert (observation.stage, observation.outcome) == (Stage.COMPILE, Outcome.COMPILE_ERROR)
    assert "error:" in observation.feedback and "‘uintptr_t’" in observation.feedback
