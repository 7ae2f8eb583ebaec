"""The whole service over a real socket with the real client: episodes, refusals, faults, capacity, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, ScriptedEvaluator, as_mock, make_settings, never, serve
from openenv.core.sync_client import SyncEnvClient
from websockets.sync.client import connect

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import CapacityReached, InvalidRequestError, SessionLost
from kernel_env.models import MAX_CODE_CHARS, InfraCode, KernelAction, KernelState, Outcome, Stage
from server import app as app_module
from server import submission
from server.evaluator import EvalResult, EvaluatorUnavailable
from server.worker.protocol import DeviceInfo, Evaluate, Verdict

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


async def connect_when_free(url: str) -> KernelEnv:
    """A session, as soon as the server has a slot; gives up after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while True:
        client = KernelEnv(url)
        try:
            await client.connect()
            return client
        except CapacityReached:
            if time.monotonic() > deadline:
                raise


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


def test_the_longest_code_is_judged(env: SyncEnvClient[Any, Any, Any]) -> None:
    env.reset(task_id=TASK)
    padding = "#" * (MAX_CODE_CHARS - len(GOOD.code))
    assert env.step(KernelAction(code=GOOD.code + padding)).observation.outcome is Outcome.SCORED


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
        assert "metadata" not in answer["data"]["observation"]
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
    assert get(f"{mock_server}/health") == {"status": "healthy"}
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


# ---------------------------------------------------------------- faults of ours


def infra(code: InfraCode) -> EvalResult:
    """What an evaluator answers when one of our parts failed."""
    detail = "/secret/path: the worker was killed"
    return EvalResult(Verdict("id", "compile", "infrastructure", infra_code=code.value, infra_detail=detail))


def test_a_fault_of_ours_pays_nothing_and_uses_no_turn(tmp_path: Path) -> None:
    answers: list[EvalResult | Exception] = [infra(InfraCode.GPU_LOST), RuntimeError("/secret/traceback")]

    async def script(request: Evaluate) -> EvalResult:
        if not answers:
            return await as_mock(request)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    log = tmp_path / "log.jsonl"
    with serve(make_settings(max_turns=1, eval_log=log), ScriptedEvaluator(script)) as url:
        with KernelEnv(url).sync() as env:
            env.reset(task_id=TASK)
            for code in (InfraCode.GPU_LOST, InfraCode.JUDGE_ERROR):
                result = env.step(GOOD)
                assert (result.reward, result.done) == (None, False)
                assert result.observation.outcome is Outcome.INFRASTRUCTURE
                assert result.observation.infra_code is code
                assert result.observation.turn == 0
                assert "secret" not in result.observation.model_dump_json()
            result = env.step(GOOD)
            assert result.done is True
            assert result.observation.outcome is Outcome.SCORED
            assert env.state().step_count == 3
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line.get("infra_code") for line in lines[1:]] == ["gpu_lost", "judge_error", None]
    assert "/secret/path" in lines[1]["infra_detail"]
    assert "/secret/traceback" in lines[2]["infra_detail"]


def test_an_evaluation_past_its_deadline_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "DEADLINE_MARGIN_S", 0.0)
    evaluator = ScriptedEvaluator(never)
    with serve(make_settings(), evaluator) as url, KernelEnv(url).sync() as env:
        env.reset(task_id=TASK, step_deadline_s=0.2)
        result = env.step(GOOD)
        assert result.observation.infra_code is InfraCode.STEP_DEADLINE
        assert result.reward is None
        assert evaluator.cancelled.wait(WAIT_S)
        assert 0 < evaluator.deadlines_s[0] <= 0.2
        evaluator.answer = as_mock
        env.reset(task_id=TASK)
        assert env.step(GOOD).observation.outcome is Outcome.SCORED
        assert 200 < evaluator.deadlines_s[1] <= 240


# ---------------------------------------------------------------- many sessions


def test_capacity_is_a_typed_error_and_a_closed_session_makes_room() -> None:
    async def scenario(url: str) -> None:
        async with KernelEnv(url) as first:
            with pytest.raises(CapacityReached):
                await KernelEnv(url).connect()
            await first.reset(task_id=TASK)
        second = await connect_when_free(url)
        await second.reset(task_id=TASK)
        await second.close()

    with serve(make_settings(max_sessions=1)) as url:
        asyncio.run(scenario(url))


def test_sessions_are_judged_side_by_side_and_keep_their_answers() -> None:
    waiting: list[asyncio.Event] = []

    async def script(request: Evaluate) -> EvalResult:
        # Nobody is answered before all have arrived.
        event = asyncio.Event()
        waiting.append(event)
        if len(waiting) == 5:
            for other in waiting:
                other.set()
        await event.wait()
        return await as_mock(request)

    async def play(url: str, number: int) -> tuple[str, str, float | None]:
        async with KernelEnv(url) as env:
            await env.reset(task_id=TASK, episode_id=str(number))
            result = await env.step(KernelAction(code=f"{GOOD.code}# {number}"))
            return str((await env.state()).episode_id), result.observation.outcome.value, result.reward

    async def scenario(url: str) -> list[tuple[str, str, float | None]]:
        return await asyncio.gather(*(play(url, number) for number in range(5)))

    with serve(make_settings(), ScriptedEvaluator(script)) as url:
        results = asyncio.run(scenario(url))
    assert [result[:2] for result in results] == [(str(number), "scored") for number in range(5)]
    assert len({result[2] for result in results}) == 5


@contextlib.asynccontextmanager
async def stepping(url: str, evaluator: ScriptedEvaluator) -> AsyncIterator[tuple[KernelEnv, asyncio.Task[Any]]]:
    """A session whose step is inside the evaluator."""
    client = KernelEnv(url)
    await client.reset(task_id=TASK)
    step = asyncio.ensure_future(client.step(GOOD))
    assert await asyncio.to_thread(evaluator.entered.wait, WAIT_S)
    yield client, step
    await client.close()


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_client_that_vanishes_mid_step_frees_its_worker_and_its_slot(how: str, tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator(never)

    async def scenario(url: str) -> None:
        async with stepping(url, evaluator) as (client, step):
            assert client._ws is not None
            if how == "abort":
                client._ws.transport.abort()
            else:
                step.cancel()
            await asyncio.wait({step})
            assert await asyncio.to_thread(evaluator.cancelled.wait, WAIT_S)
        second = await connect_when_free(url)
        evaluator.answer = as_mock
        await second.reset(task_id=TASK)
        assert (await second.step(GOOD)).observation.outcome is Outcome.SCORED
        await second.close()

    log = tmp_path / "log.jsonl"
    with serve(make_settings(max_sessions=1, eval_log=log), evaluator) as url:
        asyncio.run(scenario(url))
    codes = [json.loads(line).get("infra_code") for line in log.read_text().splitlines()]
    assert codes == [None, "cancelled", None, None]


def test_shutdown_ends_running_steps_and_the_evaluator() -> None:
    evaluator = ScriptedEvaluator(never)
    with ThreadPoolExecutor(1) as thread:
        with serve(make_settings(), evaluator) as url:
            env = KernelEnv(url).sync()
            env.reset(task_id=TASK)
            step = thread.submit(env.step, GOOD)
            assert evaluator.entered.wait(WAIT_S)
        with pytest.raises(SessionLost):
            step.result()
        env.close()
    assert evaluator.cancelled.is_set()
    assert evaluator.closed.is_set()


# ---------------------------------------------------------------- starting


def test_roofline_reward_refuses_a_device_without_known_peaks() -> None:
    evaluator = ScriptedEvaluator(as_mock, device=DeviceInfo(kind="cuda", name="NVIDIA Imaginary 9000"))
    with pytest.raises(app_module.ConfigurationError, match="Imaginary 9000.*KERNEL_ENV_REWARD=speedup"):
        app_module.build_app(make_settings(reward="roofline"), evaluator)
    assert evaluator.closed.is_set()


def test_roofline_reward_starts_on_a_known_gpu() -> None:
    evaluator = ScriptedEvaluator(as_mock, device=DeviceInfo(kind="cuda", name="NVIDIA H200"))
    app_module.build_app(make_settings(reward="roofline"), evaluator)
    assert not evaluator.closed.is_set()


class _Unavailable(ScriptedEvaluator):
    def start(self) -> None:
        raise EvaluatorUnavailable("There is no usable GPU:\nset KERNEL_ENV_EVALUATOR to cpu or mock.")


@pytest.mark.parametrize("how", ["main", "attribute"])
def test_an_evaluator_that_cannot_run_is_one_line_and_exit_code_2(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app_module, "create_evaluator", lambda settings: _Unavailable(as_mock))
    with pytest.raises(SystemExit) as exit_info:
        app_module.main(["--port", "0"]) if how == "main" else app_module.app
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert message == "kernel_env: There is no usable GPU: set KERNEL_ENV_EVALUATOR to cpu or mock.\n"


def test_invalid_settings_are_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_MAX_TURNS", "none")
    with pytest.raises(SystemExit) as exit_info:
        app_module.main([])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "max_turns" in message.lower()
