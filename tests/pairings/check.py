"""One distribution's client against both distributions' servers, over real sockets. Run by tests/pairings/run.py.

Usage: check.py PROJECT SERVERS: a copy of the project, and a JSON object, name -> [URL of the open server, URL of the
guarded one]. See serve.py. Needs nothing but the installed package, so that what is tested is what is shipped.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import check_commands
from openenv.core.env_client import EnvClient
from openenv.core.generic_client import GenericEnvClient
from serve import FAULT, NEVER, TOKEN

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import CapacityReached, InfrastructureFault, InvalidRequestError, SessionLost
from kernel_env.models import InfraCode, KernelAction, KernelState, Outcome, Stage

TASK = "level1/23_Softmax"
GOOD = KernelAction(code=demo_kernels.GOOD)
REJECTED = KernelAction(code=demo_kernels.TORCH_FALLBACK)
WAIT_S = 120.0


def client(url: str, **arguments: Any) -> KernelEnv:
    """A client that waits for a server that is still importing OpenEnv."""
    return KernelEnv(url, connect_timeout_s=WAIT_S, message_timeout_s=WAIT_S, **arguments)


def when_free(url: str, **arguments: Any) -> Any:
    """A synchronous session, as soon as the server has a slot. Each try is a new client: a refused one is finished."""
    deadline = time.monotonic() + WAIT_S
    while True:
        env = client(url, **arguments).sync()
        try:
            env.connect()
            return env
        except CapacityReached:
            env.close()
            if time.monotonic() > deadline:
                raise


def raises(kind: type[Exception], call: Callable[[], Any]) -> Any:
    """The exception of this very kind that the call raises."""
    try:
        call()
    except Exception as exc:
        assert type(exc) is kind, f"{exc!r} instead of {kind.__name__}"
        return exc
    raise AssertionError(f"no {kind.__name__}")


# ---------------------------------------------------------------- episodes


def sync_episode(url: str, guarded: str) -> None:
    """Reset, a bad step, a good step, the state, and a refusal that changes nothing."""
    with client(url).sync() as env:
        first = env.reset(seed=7, split="train").observation
        assert first.task_id == env.reset(seed=7, split="train").observation.task_id
        reset = env.reset(task_id=TASK, episode_id="mine")
        assert "class Model(" in reset.observation.problem
        assert (reset.reward, reset.done, reset.observation.evaluator) == (None, False, "mock")
        bad = env.step(REJECTED)
        assert (bad.observation.stage, bad.observation.outcome) == (Stage.STATIC, Outcome.STATIC_VIOLATION)
        assert bad.reward == 0.0 and bad.observation.feedback
        good = env.step(GOOD)
        assert good.observation.outcome is Outcome.SCORED and good.observation.phase_seconds["total"] > 0
        assert good.reward is not None and good.reward > 0 and good.reward == good.observation.reward
        refused = raises(InvalidRequestError, lambda: env.reset(task_id="level1/23_Softmux"))
        assert refused.code == "unknown_task" and TASK in refused.message
        raises(InvalidRequestError, lambda: env.step(KernelAction.model_construct(code="#" * 2_000_000)))
        state = env.state()
        assert type(state) is KernelState
        wanted = {"episode_id": "mine", "step_count": 2, "task_id": TASK, "turn": 2, "best_reward": good.reward}
        assert {name: getattr(state, name) for name in wanted} == wanted


def async_episode(url: str, guarded: str) -> None:
    """Two sessions side by side that keep their answers."""

    async def play(name: str) -> tuple[str | None, float | None]:
        async with client(url) as env:
            await env.reset(task_id=TASK, episode_id=name)
            result = await env.step(KernelAction(code=f"{GOOD.code}# {name}"))
            assert result.observation.outcome is Outcome.SCORED
            return (await env.state()).episode_id, result.reward

    async def scenario() -> tuple[tuple[str | None, float | None], ...]:
        return await asyncio.gather(play("one"), play("two"))

    results = asyncio.run(scenario())
    assert [name for name, _ in results] == ["one", "two"]
    assert results[0][1] != results[1][1]


def without_sync(url: str, guarded: str) -> None:
    """openenv 0.10 lets a client be called without `.sync()`."""
    env: Any = client(url)
    assert env.reset(task_id=TASK).observation.task_id == TASK
    assert env.step(GOOD).observation.outcome is Outcome.SCORED
    assert env.state().step_count == 1
    env.close()


def stock_client(url: str, guarded: str) -> None:
    """OpenEnv's own client, which some trainers use."""
    with GenericEnvClient(base_url=url).sync() as env:
        observation = env.reset(seed=3).observation
        assert "class Model(" in observation["problem"]
        result = env.step({"code": GOOD.code})
        assert result.reward is not None and result.observation["outcome"] == "scored"
        assert env.state()["step_count"] == 1


def metadata(url: str, guarded: str) -> None:
    """What the HTTP routes say; and nothing of ours travels in an observation's metadata, which one version drops."""

    def get(path: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url + path, timeout=WAIT_S) as response:
            return json.load(response)

    said = get("/metadata")
    assert (said["name"], said["version"]) == ("kernel_env", get("/health")["version"])
    assert get("/ready")["ready"] is True
    schema = get("/schema")
    assert "code" in schema["action"]["properties"] and "infra_code" in schema["observation"]["properties"]
    with client(url).sync() as env:
        assert not env.reset(task_id=TASK).observation.metadata
        assert not env.step(GOOD).observation.metadata


# ---------------------------------------------------------------- what goes wrong


def lost_session(url: str, guarded: str) -> None:
    """A call past the client's timeout loses the session; no later call gets its answer, and the slot is free again."""
    late = KernelAction(code=GOOD.code + NEVER)
    for held in range(3):  # more often than there are slots
        session = client(url)
        env = session.sync()
        env.reset(task_id=TASK, episode_id=f"lost {held}")
        session._message_timeout = 0.3
        assert raises(SessionLost, lambda env=env: env.step(late)).code == "timeout"
        for call in (env.state, env.reset, env.connect, lambda env=env: env.step(GOOD)):
            assert raises(SessionLost, call).code == "timeout"
        env.close()
        env = when_free(url)
        assert env.state().episode_id is None
        assert env.step(GOOD).observation.outcome is Outcome.NOT_RESET
        env.close()


def capacity(url: str, guarded: str) -> None:
    """The typed error at the first call, for good; a new client gets the slot when it is free."""
    first = when_free(guarded, token=TOKEN)
    refused = client(guarded, token=TOKEN).sync()
    for call in (refused.connect, lambda: refused.reset(task_id=TASK)):
        assert raises(CapacityReached, call).code == "capacity_reached"
    refused.close()
    assert first.reset(task_id=TASK).observation.task_id == TASK
    first.close()
    second = when_free(guarded, token=TOKEN)
    assert second.reset(task_id=TASK).observation.task_id == TASK
    second.close()


def token(url: str, guarded: str) -> None:
    """The token travels as a header of the handshake, as does a header of the caller's own."""
    for given in (None, "another"):
        assert raises(InvalidRequestError, client(guarded, token=given).sync().connect).code == "unauthorized"
    env = when_free(guarded, headers={"Authorization": f"Bearer {TOKEN}"})
    assert env.state().step_count == 0
    env.close()


def infrastructure(url: str, guarded: str) -> None:
    """A fault of ours: an observation without a reward, or a typed error, as the server is set."""
    faulty = KernelAction(code=GOOD.code + FAULT)
    with client(url).sync() as env:
        env.reset(task_id=TASK)
        result = env.step(faulty)
        assert (result.reward, result.observation.infra_code) == (None, InfraCode.GPU_LOST)
        assert (env.state().turn, env.state().step_count) == (0, 1)
    env = when_free(guarded, token=TOKEN)
    env.reset(task_id=TASK)
    before = env.state()
    assert raises(InfrastructureFault, lambda: env.step(faulty)).infra_code == InfraCode.GPU_LOST
    assert env.state() == before
    assert env.step(GOOD).observation.outcome is Outcome.SCORED
    env.close()


CHECKS = [sync_episode, async_episode, stock_client, metadata, lost_session, capacity, token, infrastructure]
if hasattr(EnvClient, "_connect_async"):
    CHECKS.append(without_sync)


def main() -> None:
    """Run every check against every server; the first failure ends it with its traceback."""
    servers = json.loads(sys.argv[2])
    for name, urls in servers.items():
        for check in CHECKS:
            began = time.monotonic()
            check(*urls)
            print(f"  server {name}: {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    began = time.monotonic()
    check_commands(Path(sys.argv[1]), [url for url, _ in servers.values()])
    print(f"  its commands: validate, build, push ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
