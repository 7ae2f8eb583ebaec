"""The service when something fails or sessions share it: our faults, deadlines, capacity, disconnects, starting."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, ScriptedEvaluator, as_mock, connect_when_free, make_settings, never, serve

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import CapacityReached, SessionLost
from kernel_env.models import InfraCode, KernelAction, Outcome
from server import app as app_module
from server import submission
from server.evaluator import EvalResult, EvaluatorUnavailable
from server.worker.protocol import DeviceInfo, Evaluate, Verdict

TASK = "level1/23_Softmax"
GOOD = KernelAction(code=demo_kernels.GOOD)


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
