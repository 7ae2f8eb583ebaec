"""KERNEL_ENV_INFRA_FAILURE over a real socket: a fault of ours as an observation or as an error, and what counts."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import pytest
from conftest import ScriptedEvaluator, as_mock, make_settings, serve

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import InfrastructureFault, KernelEnvError, ServerError
from kernel_env.models import InfraCode, KernelAction, Outcome
from server.environment import KernelEnvironment
from server.eval_log import EvalLog
from server.evaluator import EvalResult
from server.submission import Services
from server.tasks import TaskSource
from server.worker.protocol import Evaluate, Verdict

TASK = "level1/23_Softmax"
GOOD = KernelAction(code=demo_kernels.GOOD)
REJECTED = KernelAction(code=demo_kernels.TORCH_FALLBACK)


class Failing(ScriptedEvaluator):
    """Fails as often as it is told to, in each of the ways in which an evaluator can, then answers as the mock does."""

    def __init__(self, *faults: InfraCode | Exception) -> None:
        self.faults = list(faults)
        super().__init__(self._next)

    async def _next(self, request: Evaluate) -> EvalResult:
        if not self.faults:
            return await as_mock(request)
        fault = self.faults.pop(0)
        if isinstance(fault, Exception):
            raise fault
        detail = "/secret/path: the worker was killed"
        return EvalResult(Verdict("id", "compile", "infrastructure", infra_code=fault.value, infra_detail=detail))


def test_as_an_error_it_is_typed_and_changes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    settings = make_settings(max_turns=2, infra_failure="error_frame", eval_log=log)
    with serve(settings, Failing(InfraCode.GPU_LOST, RuntimeError("/secret/traceback"))) as url:
        with KernelEnv(url).sync() as env:
            env.reset(task_id=TASK, episode_id="mine")
            env.step(REJECTED)
            before = env.state()
            for code in (InfraCode.GPU_LOST, InfraCode.JUDGE_ERROR):
                with pytest.raises(InfrastructureFault) as raised:
                    env.step(GOOD)
                assert (raised.value.code, raised.value.infra_code) == ("infrastructure_fault", code)
                assert isinstance(raised.value, ServerError)
                assert "Submit it again" in raised.value.message and "secret" not in str(raised.value)
                assert env.state() == before
            result = env.step(GOOD)
            assert (result.observation.outcome, result.observation.turn, result.done) == (Outcome.SCORED, 2, True)
            assert env.state().step_count == 2
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    # The log is the same however the fault is answered.
    assert [line.get("infra_code") for line in lines[2:]] == ["gpu_lost", "judge_error", None]
    assert [line.get("step_count") for line in lines[1:]] == [1, 1, 1, 2]
    assert "/secret/path" in lines[2]["infra_detail"]


def test_by_default_it_is_an_observation_without_a_reward() -> None:
    with serve(make_settings(max_turns=1), Failing(InfraCode.DISK)) as url, KernelEnv(url).sync() as env:
        env.reset(task_id=TASK)
        result = env.step(GOOD)
        assert (result.reward, result.done, result.observation.infra_code) == (None, False, InfraCode.DISK)
        assert (env.state().step_count, env.state().turn) == (1, 0)


def test_without_a_websocket_there_is_no_error_frame_to_send() -> None:
    """The command line and /web show the observation, as they always did."""
    settings, evaluator = make_settings(infra_failure="error_frame"), Failing(InfraCode.DISK)
    environment = KernelEnvironment(Services(settings, evaluator, TaskSource.builtin(), EvalLog(None, io.StringIO())))
    environment.reset(task_id=TASK)
    assert environment.step(GOOD).infra_code is InfraCode.DISK


def test_it_survives_pickling() -> None:
    copy: KernelEnvError = pickle.loads(pickle.dumps(InfrastructureFault("infrastructure_fault", "why", "disk")))
    assert isinstance(copy, InfrastructureFault)
    assert (copy.code, copy.message, copy.infra_code) == ("infrastructure_fault", "why", "disk")
