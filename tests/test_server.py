"""The whole service over a real socket with the real client: episodes, refusals, the wire and the log."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S
from openenv.core.sync_client import SyncEnvClient
from websockets.sync.client import connect

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import InvalidRequestError
from kernel_env.models import MAX_CODE_CHARS, KernelAction, KernelState, Outcome, Stage
from server.static_checks import MAX_CODE_BYTES

TASK = "level1/23_Softmax"
GOOD = KernelAction(code=demo_kernels.GOOD)
REJECTED = KernelAction(code=demo_kernels.TORCH_FALLBACK)


@pytest.fixture
def env(mock_server: str) -> Iterator[SyncEnvClient[Any, Any, Any]]:
    """A fresh session with the module's server."""
    with KernelEnv(mock_server).sync() as client:
        yield client


def get(url: str) -> Any:
    """The JSON at a URL of the server under test."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=WAIT_S) as response:
        return json.load(response)


# ---------------------------------------------------------------- reset


def test_same_seed_and_split_give_the_same_task_in_every_session(mock_server: str) -> None:
    def tasks(split: str) -> list[str]:
        with KernelEnv(mock_server).sync() as client:
            return [client.reset(seed=seed, split=split).observation.task_id for seed in range(-2, 10)]

    train, held = tasks("train"), tasks("eval")
    assert (train, held) == (tasks("train"), tasks("eval"))
    assert len(set(train)) > 3
    assert not set(train) & set(held)


def test_reset_hands_out_the_problem(env: SyncEnvClient[Any, Any, Any]) -> None:
    result = env.reset(task_id=TASK, language="cuda")
    observation = result.observation
    assert "class Model(" in observation.problem
    assert (observation.task_id, observation.language) == (TASK, "cuda")
    assert (observation.stage, observation.outcome) == (Stage.READY, Outcome.READY)
    assert (observation.turn, observation.max_turns, observation.evaluator) == (0, 2, "mock")
    assert (result.reward, result.done) == (None, False)


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        ({"task_id": "level1/23_Softmux"}, "unknown_task", TASK),
        ({"split": "test"}, "unknown_split", "train, eval"),
        ({"language": "opencl"}, "unknown_language", "triton, cuda"),
        ({"taskid": TASK}, "unknown_argument", "task_id"),
        ({"func": 1, "session_id": 2}, "unknown_argument", "task_id"),
        ({"seed": True}, "invalid_argument", "seed"),
        ({"seed": "1"}, "invalid_argument", "seed"),
        ({"task_id": 23}, "invalid_argument", "task_id"),
        ({"episode_id": "x" * 256}, "invalid_argument", "255"),
        ({"episode_id": ""}, "invalid_argument", "255"),
        ({"step_deadline_s": 0}, "invalid_argument", "3600"),
        ({"step_deadline_s": 3601}, "invalid_argument", "3600"),
        ({"step_deadline_s": "soon"}, "invalid_argument", "3600"),
    ],
)
def test_refused_reset_says_what_is_valid_and_changes_nothing(
    env: SyncEnvClient[Any, Any, Any], arguments: dict[str, Any], code: str, hint: str
) -> None:
    env.reset(task_id=TASK, episode_id="before")
    env.step(REJECTED)
    with pytest.raises(InvalidRequestError) as raised:
        env.reset(**arguments)
    assert raised.value.code == code
    assert hint in raised.value.message
    state = env.state()
    assert (state.episode_id, state.task_id, state.turn) == ("before", TASK, 1)
    assert env.step(GOOD).observation.outcome is Outcome.SCORED


def test_refusals_are_bounded(env: SyncEnvClient[Any, Any, Any]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        env.reset(**{f"name{number}" * 1000: number for number in range(100)})
    assert len(raised.value.message) < 2100
    with pytest.raises(InvalidRequestError) as raised:
        env.reset(task_id="x" * 1_000_000)
    assert len(raised.value.message) < 2100


# ---------------------------------------------------------------- an episode


def test_an_episode_from_reset_to_its_last_turn(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK, episode_id="mine")
    rejected = env.step(REJECTED)
    assert (rejected.observation.stage, rejected.reward, rejected.done) == (Stage.STATIC, 0.0, False)
    assert rejected.observation.outcome is Outcome.STATIC_VIOLATION
    assert rejected.observation.feedback
    scored = env.step(GOOD)
    observation = scored.observation
    assert (observation.stage, observation.outcome, scored.done) == (Stage.SCORED, Outcome.SCORED, True)
    assert observation.feedback.startswith("MOCK:")
    assert observation.timing_method == "mock"
    assert observation.correct is True
    assert observation.speedup == pytest.approx(observation.t_ref_ms / observation.t_new_ms)
    assert scored.reward is not None and scored.reward > 0
    assert observation.best_reward == scored.reward
    assert observation.turn == 2
    over = env.step(GOOD)
    assert (over.observation.outcome, over.reward, over.done) == (Outcome.EPISODE_OVER, 0.0, True)
    expected = KernelState(
        episode_id="mine",
        step_count=2,
        task_id=TASK,
        language="triton",
        split=observation.split,
        turn=2,
        max_turns=2,
        best_reward=scored.reward,
        done=True,
    )
    assert env.state() == expected


def test_success_does_not_end_an_episode(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK)
    assert env.step(GOOD).done is False


def test_step_before_reset_is_answered_and_not_counted(env: SyncEnvClient[Any, Any, Any]) -> None:
    result = env.step(GOOD)
    assert (result.observation.outcome, result.reward, result.done) == (Outcome.NOT_RESET, 0.0, False)
    assert "reset" in result.observation.feedback
    assert env.state().step_count == 0


def test_a_new_reset_starts_from_nothing(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK)
    env.step(GOOD)
    observation = env.reset(task_id=TASK).observation
    assert (observation.turn, observation.best_reward, observation.done) == (0, None, False)
    assert env.state().step_count == 0


def test_the_same_source_gets_the_same_mock_reward(mock_server: str) -> None:
    rewards = set()
    for _ in range(2):
        with KernelEnv(mock_server).sync() as client:
            client.reset(task_id=TASK)
            rewards.add(client.step(GOOD).reward)
    assert len(rewards) == 1


def test_too_long_code_is_refused_and_the_session_lives(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK)
    with pytest.raises(InvalidRequestError) as raised:
        env.step(KernelAction.model_construct(code="#" * 2_000_000))
    assert raised.value.code == "validation_error"
    assert env.state().step_count == 0
    assert env.step(GOOD).observation.outcome is Outcome.SCORED


def test_the_longest_code_is_judged_and_a_longer_one_rejected(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK)
    for length, outcome in ((MAX_CODE_BYTES, Outcome.SCORED), (MAX_CODE_CHARS, Outcome.STATIC_VIOLATION)):
        padding = "#" * (length - len(GOOD.code))
        assert env.step(KernelAction(code=GOOD.code + padding)).observation.outcome is outcome


def test_what_is_on_the_wire(mock_server: str) -> None:
    """Nothing essential is in metadata, which OpenEnv 0.3.0 drops; a surrogate in the code does not end a session."""
    with connect(mock_server.replace("http", "ws") + "/ws", proxy=None) as socket:

        def ask(kind: str, data: dict[str, Any]) -> dict[str, Any]:
            socket.send(json.dumps({"type": kind, "data": data}))
            return json.loads(socket.recv(timeout=WAIT_S))

        ask("reset", {"task_id": TASK})
        answer = ask("step", {"code": GOOD.code + "# \ud800"})
        assert answer["type"] == "observation"
        assert set(answer["data"]) == {"observation", "reward", "done"}
        assert answer["data"]["observation"]["stage"] == "scored"
        assert not answer["data"]["observation"].get("metadata")
        assert ask("step", {"code": 5})["data"]["code"] == "VALIDATION_ERROR"
        assert ask("step", {"code": "x"})["type"] == "observation"


# ---------------------------------------------------------------- log, status, HTTP


def test_one_log_line_for_each_reset_and_step(mock_server: str, log_path: Path) -> None:
    before = len(log_path.read_text().splitlines())
    with KernelEnv(mock_server).sync() as env:
        env.reset(task_id=TASK, seed=7, episode_id="logged")
        env.step(REJECTED)
        scored = env.step(GOOD)
        env.step(GOOD)
        with pytest.raises(InvalidRequestError):
            env.reset(split="test")
    lines = [json.loads(line) for line in log_path.read_text().splitlines()[before:]]
    assert [line["event"] for line in lines] == ["reset", "step", "step", "step", "reset"]
    assert len({line["session_id"] for line in lines}) == 1
    reset, static, step, over, refused = lines
    assert (reset["episode_id"], reset["task_id"], reset["seed"]) == ("logged", TASK, 7)
    assert (static["stage"], static["outcome"], static["reward"]) == ("static", "static_violation", 0.0)
    assert (step["stage"], step["outcome"], step["reward"]) == ("scored", "scored", scored.reward)
    assert step["code_sha256"] == hashlib.sha256(GOOD.code.encode()).hexdigest()
    assert step["task_hash"] == reset["task_hash"]
    assert step["t_ref_ms"] == scored.observation.t_ref_ms
    assert step["phase_seconds"]["total"] >= step["phase_seconds"]["static"] > 0
    assert static["eval_id"] != step["eval_id"]
    assert over["outcome"] == "episode_over"
    assert refused["error"] == "unknown_split"


def test_status_and_health(mock_server: str) -> None:
    assert get(f"{mock_server}/health")["status"] == "healthy"
    with KernelEnv(mock_server).sync():
        status = get(f"{mock_server}/status")
    assert (status["evaluator"], status["workers"], status["queue_depth"]) == ("mock", [], 0)
    assert status["tasks"]["source"] == "builtin"
    assert status["sessions"]["max"] == 16
    assert status["sessions"]["open"] >= 1


def test_a_refusal_over_http_is_not_a_server_error(mock_server: str) -> None:
    request = urllib.request.Request(
        f"{mock_server}/reset", json.dumps({"split": "test"}).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as raised:
        opener.open(request, timeout=WAIT_S)
    assert raised.value.code == 422
    assert json.load(raised.value)["detail"].startswith("[unknown_split]")
