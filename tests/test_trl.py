"""The TRL environment class, with a client that never touches a network."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

import kernel_env
from kernel_env.errors import InfrastructureFault, InvalidRequestError
from kernel_env.integrations import trl
from kernel_env.integrations.trl import KernelBenchTool


def answer(reward: float | None, done: bool = False, turn: int = 1, stage: str = "scored") -> SimpleNamespace:
    observation = SimpleNamespace(
        problem="the problem", feedback="the feedback", turn=turn, max_turns=4, stage=SimpleNamespace(value=stage)
    )
    return SimpleNamespace(observation=observation, reward=reward, done=done)


class FakeSession:
    """Answers from a list; an exception in the list is raised."""

    def __init__(self, resets: list[Any], steps: list[Any]) -> None:
        self.resets, self.steps = resets, steps
        self.reset_calls: list[dict[str, Any]] = []
        self.submitted: list[str] = []
        self.closed = False

    def reset(self, **kwargs: Any) -> Any:
        self.reset_calls.append(kwargs)
        return self._next(self.resets)

    def step(self, action: Any) -> Any:
        self.submitted.append(action)
        return self._next(self.steps)

    def close(self) -> None:
        self.closed = True
        raise OSError("already gone")

    def _next(self, answers: list[Any]) -> Any:
        value = answers.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


class Server:
    """Hands out sessions in order and remembers the addresses asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[FakeSession] = []
        self.urls: list[str] = []
        monkeypatch.setattr(trl, "_open_session", self.open)
        monkeypatch.setattr(trl, "_action", lambda code: code)

    def add(self, resets: list[Any] | None = None, steps: list[Any] | None = None) -> FakeSession:
        session = FakeSession([answer(None)] if resets is None else resets, steps or [])
        self.waiting.append(session)
        return session

    def open(self, url: str) -> FakeSession:
        self.urls.append(url)
        return self.waiting.pop(0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_the_class_meets_trl_s_contract(server: Server) -> None:
    tool = KernelBenchTool()
    assert server.urls == []  # connects at the first reset
    # TRL makes a tool of every public function, and builds its schema from types and docstring.
    public = {name for name, _ in inspect.getmembers(KernelBenchTool, inspect.isfunction) if not name.startswith("_")}
    assert public == {"reset", "get_reward", "submit_kernel"}
    signature = inspect.signature(tool.submit_kernel, eval_str=True)
    assert signature.parameters["code"].annotation is str and signature.return_annotation is str
    documentation = inspect.getdoc(tool.submit_kernel) or ""
    assert "Args:\n    code: " in documentation and "Returns:" in documentation


def test_an_episode_pays_its_best_submission(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_ENV_URL", "http://host:1")
    session = server.add(steps=[answer(0.0, stage="correctness"), answer(1.3, turn=2), answer(0.2, True, turn=3)])
    tool = KernelBenchTool()
    assert tool.reset(prompt=[{}], seed=0, task_id=None, language="cuda", answer="x") == "the problem"
    assert session.reset_calls == [{"seed": 0, "language": "cuda"}]
    assert tool.get_reward() == 0.0
    first = tool.submit_kernel("a")
    assert "stage: correctness" in first and "the feedback" in first and "1 of 4" in first
    tool.submit_kernel("b")
    tool.submit_kernel("c")
    assert tool.get_reward() == 1.3
    assert "over" in tool.submit_kernel("d")
    assert session.submitted == ["a", "b", "c"]
    assert server.urls == ["http://host:1"]


def test_a_new_episode_reuses_the_session_and_forgets_the_old_reward(server: Server) -> None:
    session = server.add(resets=[answer(None), answer(None)], steps=[answer(2.0, True)])
    tool = KernelBenchTool()
    tool.reset(task_id="level1/19_ReLU")
    tool.submit_kernel("a")
    tool.reset(task_id="level1/19_ReLU")
    assert tool.get_reward() == 0.0
    assert len(session.reset_calls) == 2 and len(server.urls) == 1


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_a_missing_reward_is_never_a_number(server: Server, missing: float | None) -> None:
    server.add(steps=[answer(1.0), answer(missing, stage="compile"), answer(0.5)])
    tool = KernelBenchTool()
    tool.reset(seed=1)
    tool.submit_kernel("a")
    tool.submit_kernel("a")
    assert tool.get_reward() is None
    tool.submit_kernel("a")  # the fault passed
    assert tool.get_reward() == 1.0


def test_a_fault_that_comes_as_an_error_keeps_the_session(server: Server) -> None:
    fault = InfrastructureFault("infrastructure_fault", "gpu_lost: not the kernel's fault", "gpu_lost")
    session = server.add(steps=[answer(1.0), fault, answer(0.5)])
    tool = KernelBenchTool()
    tool.reset(seed=1)
    tool.submit_kernel("a")
    assert "not the kernel's fault" in tool.submit_kernel("a")
    assert tool.get_reward() is None and not session.closed
    tool.submit_kernel("a")
    assert tool.get_reward() == 1.0


def test_a_lost_connection_ends_the_episode_without_a_reward(server: Server) -> None:
    lost = server.add(steps=[ConnectionError("gone")])
    tool = KernelBenchTool()
    tool.reset(seed=1)
    assert "not the fault of your kernel" in tool.submit_kernel("a")
    assert tool.get_reward() is None
    assert lost.closed
    assert "over" in tool.submit_kernel("a")
    fresh = server.add(steps=[answer(1.5)])
    tool.reset(seed=2)
    tool.submit_kernel("a")
    assert tool.get_reward() == 1.5
    assert fresh.reset_calls == [{"seed": 2}]


def test_a_stale_session_is_replaced_at_reset(server: Server) -> None:
    stale = server.add(resets=[answer(None), ConnectionError("idle too long")])
    server.add()
    tool = KernelBenchTool()
    tool.reset(seed=1)
    assert tool.reset(seed=2) == "the problem"
    assert stale.closed


def test_a_reset_that_fails_twice_raises_and_leaves_nothing_open(server: Server) -> None:
    sessions = [server.add(resets=[ConnectionError("down")]), server.add(resets=[ConnectionError("still down")])]
    tool = KernelBenchTool()
    with pytest.raises(ConnectionError, match="still down"):
        tool.reset(seed=1)
    assert all(session.closed for session in sessions)
    assert "over" in tool.submit_kernel("a")


def test_a_row_must_fix_the_task(server: Server) -> None:
    with pytest.raises(ValueError, match="task_id"):
        KernelBenchTool().reset(split="train")


def test_a_refused_row_raises_at_once_and_keeps_the_session(server: Server) -> None:
    session = server.add(resets=[InvalidRequestError("unknown_task", "no such task"), answer(None)])
    tool = KernelBenchTool()
    with pytest.raises(InvalidRequestError, match="no such task"):
        tool.reset(task_id="level1/0_Nothing")
    assert tool.reset(task_id="level1/19_ReLU") == "the problem"
    assert not session.closed


def test_a_refused_submission_is_the_model_s_fault_and_keeps_the_session(server: Server) -> None:
    server.add(steps=[InvalidRequestError("invalid_action", "too long"), answer(1.0)])
    tool = KernelBenchTool()
    tool.reset(seed=1)
    with pytest.raises(InvalidRequestError, match="too long"):
        tool.submit_kernel("a")
    assert tool.get_reward() == 0.0
    tool.submit_kernel("b")
    assert tool.get_reward() == 1.0


def test_the_real_client_is_opened_synchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession([answer(None)], [answer(1.0)])
    opened: list[str] = []

    class Client:
        def __init__(self, base_url: str) -> None:
            opened.append(base_url)

        def sync(self) -> FakeSession:
            return session

    monkeypatch.delenv("KERNEL_ENV_URL", raising=False)
    # Not setattr: it would look the attributes up first, and so import openenv, which takes seconds.
    monkeypatch.setitem(vars(kernel_env), "KernelEnv", Client)
    monkeypatch.setitem(vars(kernel_env), "KernelAction", lambda code: {"code": code})
    tool = KernelBenchTool()
    tool.reset(seed=1)
    tool.submit_kernel("x = 1")
    assert opened == ["http://localhost:8000"]
    assert session.submitted == [{"code": "x = 1"}]


def test_an_invalid_submission_is_the_model_s_fault(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: str) -> None:
        raise ValueError("too long")

    server.add()
    tool = KernelBenchTool()
    tool.reset(seed=1)
    monkeypatch.setattr(trl, "_action", refuse)
    with pytest.raises(ValueError, match="too long"):
        tool.submit_kernel("a" * 9)
    assert tool.get_reward() == 0.0
