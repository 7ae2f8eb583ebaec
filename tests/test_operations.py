"""What an operator asks a server over HTTP: liveness, readiness, metrics, and what the API says of itself."""

from __future__ import annotations

import json
import tomllib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, ScriptedEvaluator, as_mock, make_settings, never, serve
from prometheus_client.parser import text_string_to_metric_families

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.models import InfraCode, KernelAction, Stage
from server.evaluator import EvalResult
from server.lease import Lease
from server.operations import unready
from server.version import VERSION
from server.worker.protocol import DeviceInfo, Evaluate, Verdict
from tests import cpu_submissions
from tests.cpu_pool import NEEDS_CPU_EVALUATOR

TASK = "level1/23_Softmax"
GOOD = KernelAction(code=demo_kernels.GOOD)
REJECTED = KernelAction(code=demo_kernels.TORCH_FALLBACK)
H200 = DeviceInfo(kind="cuda", name="NVIDIA H200", sandbox="uid+net")


def fetch(url: str, body: Any = None) -> tuple[int, bytes]:
    """Status and body of a GET, or of a POST of JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=WAIT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def samples(url: str) -> dict[tuple[str, ...], float]:
    """The values at /metrics: (name, label value, ...) -> value."""
    status, text = fetch(f"{url}/metrics")
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


class Workers(ScriptedEvaluator):
    """An evaluator with workers in the states that a test sets."""

    def __init__(self, *states: str) -> None:
        super().__init__(as_mock, device=H200)
        self.lacks: dict[str, list[str]] = {}
        self.states = list(states)
        self.name = "gpu"

    def status(self) -> dict[str, Any]:
        workers = [{"worker": number, "state": state} for number, state in enumerate(self.states)]
        return {"evaluator": self.name, "workers": workers, "queue_depth": 3, "lacks": self.lacks}


# ---------------------------------------------------------------- liveness and readiness


def test_ready_only_while_a_worker_can_evaluate_and_alive_all_the_same() -> None:
    evaluator = Workers("starting", "idle")
    with serve(make_settings(gpus=[0, 3]), evaluator) as url:
        for states, status in (
            (["starting", "idle"], 200),
            (["down", "busy"], 200),
            (["starting", "down", "down"], 503),
            (["idle"], 200),
        ):
            evaluator.states = states
            code, body = fetch(f"{url}/ready")
            answer = json.loads(body)
            assert (code, answer["ready"]) == (status, status == 200)
            assert (answer["reason"] is None) is answer["ready"]
            assert fetch(f"{url}/health")[0] == 200
            assert samples(url)[("kernel_env_ready",)] == answer["ready"]
        evaluator.states = ["starting", "down", "down"]
        assert json.loads(fetch(f"{url}/ready")[1])["reason"] == "No worker can evaluate: 2 down, 1 starting."


def test_health_ready_and_status_say_what_the_server_is() -> None:
    said = {
        "version": VERSION,
        "evaluator": "gpu",
        "device": "NVIDIA H200",
        "gpus": [0, 3],
        "sandbox": "uid+net",
    }
    with serve(make_settings(gpus=[0, 3]), Workers("idle")) as url:
        for route in ("health", "ready", "status"):
            answer = json.loads(fetch(f"{url}/{route}")[1])
            assert {name: answer[name] for name in said} == said, route
            assert answer["tasks"]["source"] == "builtin"
            assert answer["tasks"]["count"] > 10


def test_a_host_where_nothing_can_be_compiled_is_not_ready() -> None:
    evaluator = Workers("idle")
    with serve(make_settings(gpus=[0, 3]), evaluator) as url:
        for triton, cuda, status in (
            ([], [], 200),
            ([], ["nvcc"], 200),
            (["gcc"], ["nvcc", "c++"], 503),
            ([], [], 200),
        ):
            evaluator.lacks = {"triton": triton, "cuda": cuda}
            found, text = fetch(f"{url}/ready")
            answer = json.loads(text)
            assert (found, answer["ready"]) == (status, status == 200)
            assert [name for name in ("gcc", "nvcc", "c++") if name in " ".join(answer["out"])] == triton + cuda
            assert answer["reason"] is None if status == 200 else "gcc not found" in answer["reason"]


def test_an_evaluator_without_workers_is_always_ready(mock_server: str) -> None:
    assert fetch(f"{mock_server}/ready")[0] == 200
    assert unready({"workers": []}) is None


def test_the_version_is_the_packages() -> None:
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    assert pyproject["project"]["version"] == VERSION


# ---------------------------------------------------------------- metrics


def test_metrics_count_every_answer_once() -> None:
    async def script(request: Evaluate) -> EvalResult:
        if request.code == GOOD.code:
            return EvalResult((await as_mock(request)).verdict, H200, queue_s=2.0)
        lost = Verdict(request.eval_id, "compile", "infrastructure", infra_code="worker_lost")
        killed = Verdict(request.eval_id, "compile", "crashed", signal=9)
        verdict = Verdict(request.eval_id, "compile", "infrastructure", infra_code="disk")
        return EvalResult(verdict, attempts=3, retried=[killed, lost])

    with serve(make_settings(max_turns=2), ScriptedEvaluator(script)) as url:
        before = samples(url)
        with KernelEnv(url).sync() as env:
            env.step(GOOD)
            env.reset(task_id=TASK)
            for code in (REJECTED.code, GOOD.code + "\n", GOOD.code, GOOD.code):
                env.step(KernelAction(code=code))
            during = samples(url)
    assert before[("kernel_env_open_sessions",)] == 0
    assert during[("kernel_env_open_sessions",)] == 1
    assert {key[1:]: value for key, value in during.items() if key[0] == "kernel_env_verdicts_total"} == {
        # Labels are in the order of their names: outcome, stage.
        ("not_reset", "ready"): 1,
        ("static_violation", "static"): 1,
        ("infrastructure", "compile"): 1,
        ("scored", "scored"): 1,
        ("episode_over", "ready"): 1,
    }
    faults = {key[1]: value for key, value in during.items() if key[0] == "kernel_env_infrastructure_faults_total"}
    assert faults == {code.value: float(code is InfraCode.DISK) for code in InfraCode}
    retries = {key[1]: value for key, value in during.items() if key[0] == "kernel_env_retries_total"}
    assert retries == {code.value: float(code is InfraCode.WORKER_LOST) for code in InfraCode} | {"signal": 1.0}
    assert during[("kernel_env_queue_wait_seconds_count",)] == 2
    assert during[("kernel_env_queue_wait_seconds_sum",)] == 2.0
    assert during[("kernel_env_phase_seconds_count", "static")] == 3
    assert during[("kernel_env_phase_seconds_count", "total")] == 3
    assert ("kernel_env_phase_seconds_count", "queue") not in during
    assert during[("kernel_env_evaluations_in_work",)] == 0


def test_metrics_say_what_is_in_work_and_what_the_workers_do() -> None:
    evaluator = Workers("busy", "busy", "down")
    evaluator.answer = never
    with serve(make_settings(max_sessions=7), evaluator) as url, ThreadPoolExecutor(1) as thread:
        env = KernelEnv(url).sync()
        env.reset(task_id=TASK)
        step = thread.submit(env.step, GOOD)
        assert evaluator.entered.wait(WAIT_S)
        now = samples(url)
        env.close()
        assert step.exception(WAIT_S) is not None
    assert now[("kernel_env_evaluations_in_work",)] == 1
    assert now[("kernel_env_queue_depth",)] == 3
    assert now[("kernel_env_max_sessions",)] == 7
    states = {key[1]: value for key, value in now.items() if key[0] == "kernel_env_workers"}
    assert states == {"starting": 0, "idle": 0, "busy": 2, "down": 1}
    assert now[("kernel_env_server_info", "gpu", "uid+net", "builtin", VERSION)] == 1


def test_two_servers_in_one_process_count_for_themselves(mock_server: str) -> None:
    with serve(make_settings()) as other:
        with KernelEnv(other).sync() as env:
            env.step(GOOD)
        key = ("kernel_env_verdicts_total", "not_reset", "ready")
        assert samples(other)[key] == 1
        assert samples(mock_server).get(key) is None


def test_the_lease_adds_up_how_long_the_gpu_was_used() -> None:
    now = [100.0]
    lease = Lease(clock=lambda: now[0])
    for worker in (1, 2):
        lease.join(worker, lambda message: None)

    def at(seconds: float) -> None:
        now[0] = 100.0 + seconds

    at(1)
    lease.want(1, alone=False, memory_bytes=0)
    at(2)
    lease.want(2, alone=False, memory_bytes=0)
    at(3)
    lease.want(2, alone=True, memory_bytes=0)
    assert lease.used_seconds() == {"shared": 2.0, "alone": 0.0}
    at(4)
    lease.paused(1)  # until then the first may still use it
    assert lease.used_seconds() == {"shared": 3.0, "alone": 0.0}
    at(10)
    assert lease.used_seconds() == {"shared": 3.0, "alone": 6.0}
    lease.release(2)
    at(11)
    lease.leave(1)
    at(50)
    assert lease.used_seconds() == {"shared": 4.0, "alone": 6.0}
    assert lease.age_seconds() == 50.0


def test_metrics_say_how_busy_each_gpu_was() -> None:
    class Leased(Workers):
        def status(self) -> dict[str, Any]:
            used = {"shared": 30.0, "alone": 20.0}
            return {**super().status(), "leases": [{"gpu": 3, "used_seconds": used, "age_seconds": 200.0}]}

    with serve(make_settings(), Leased("idle")) as url:
        now = samples(url)
    assert now[("kernel_env_gpu_busy_ratio", "3")] == 0.25
    assert now[("kernel_env_gpu_busy_seconds_total", "3", "alone")] == 20.0
    assert now[("kernel_env_gpu_busy_seconds_total", "3", "shared")] == 30.0


# ---------------------------------------------------------------- OpenEnv's HTTP routes


def test_http_routes_are_stateless_and_say_so(mock_server: str) -> None:
    status, body = fetch(f"{mock_server}/reset", {"task_id": TASK})
    assert status == 200
    assert "class Model(" in json.loads(body)["observation"]["problem"]
    status, body = fetch(f"{mock_server}/step", {"action": {"code": GOOD.code}})
    answer = json.loads(body)
    assert (status, answer["reward"], answer["observation"]["outcome"]) == (200, 0.0, "not_reset")
    assert "WebSocket" in answer["observation"]["feedback"]
    paths = json.loads(fetch(f"{mock_server}/openapi.json")[1])["paths"]
    for path, method in (("/reset", "post"), ("/step", "post"), ("/state", "get")):
        assert "a session of its own" in paths[path][method]["description"], path
    assert {"/health", "/ready", "/status", "/metrics"} <= paths.keys()


def test_a_step_before_reset_over_the_websocket_is_not_told_about_http(mock_server: str) -> None:
    with KernelEnv(mock_server).sync() as env:
        assert "HTTP" not in env.step(GOOD).observation.feedback


@pytest.mark.parametrize("body", [{"action": {"code": 5}}, {"action": {}}, {}])
def test_a_step_over_http_that_is_not_an_action_is_refused(mock_server: str, body: Any) -> None:
    assert fetch(f"{mock_server}/step", body)[0] == 422


# ---------------------------------------------------------------- with real workers


@NEEDS_CPU_EVALUATOR
def test_the_cpu_evaluator_tells_what_its_worker_did() -> None:
    with serve(make_settings(evaluator="cpu", trials=2, timed_runs=3)) as url:
        with KernelEnv(url).sync() as env:
            env.reset(task_id=TASK)
            result = env.step(KernelAction(code=cpu_submissions.GOOD))
            assert result.observation.stage is Stage.SCORED, result.observation.feedback
        now = samples(url)
        status = json.loads(fetch(f"{url}/status")[1])
        assert fetch(f"{url}/ready")[0] == 200
    assert now[("kernel_env_workers", "idle")] + now[("kernel_env_workers", "busy")] == 1
    assert 0 < now[("kernel_env_gpu_busy_ratio", "cpu")] < 1
    assert now[("kernel_env_gpu_busy_seconds_total", "cpu", "alone")] > 0
    assert now[("kernel_env_phase_seconds_sum", "timing")] > 0
    assert now[("kernel_env_queue_wait_seconds_count",)] == 1
    (lease,) = status["leases"]
    assert lease["gpu"] is None and set(lease["holders"].values()) == {"out"}
