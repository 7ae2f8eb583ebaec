"""Sessions over a training run: a thousand of them, over capacity, half-open sockets, and answers that come late.

A step of 150 s is in test_soak.py, beside which it costs no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from conftest import WAIT_S, ScriptedEvaluator, as_mock, make_settings, never, serve

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import CapacityReached, SessionLost
from kernel_env.models import KernelAction
from server import descriptors
from server.evaluator import EvalResult
from server.mock_evaluator import _fraction
from server.worker.protocol import Evaluate

TASK = "level1/23_Softmax"
SESSIONS = 1000
OVER = 25
Connect = Callable[[str], Awaitable[KernelEnv]]


def kernel(name: object) -> str:
    """A submission like no other."""
    return f"{demo_kernels.GOOD}# {name}\n"


async def plays(env: KernelEnv, name: object) -> bool:
    """Whether a step of this session is answered, and with what belongs to its own source."""
    await env.reset(task_id=TASK)
    code = kernel(name)
    speedup = (await env.step(KernelAction(code=code))).observation.speedup
    return speedup == pytest.approx(2.0 ** (3.0 * _fraction(code) - 1.0))


def readme_connect() -> Connect:
    """What the README says to do over capacity, as it stands there."""
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "CapacityReached" in block)
    names: dict[str, Connect] = {}
    exec(block, names)
    return names["connect"]


def test_a_thousand_sessions_and_those_over_capacity_get_in_when_slots_free() -> None:
    connect = readme_connect()
    descriptors.prepare()  # both ends of each socket are here

    async def scenario(url: str) -> None:
        at_once = asyncio.Semaphore(32)

        async def first(number: int) -> KernelEnv:
            async with at_once:
                env = await KernelEnv(url).connect()
                assert await plays(env, number)
                return env

        clients = await asyncio.gather(*(first(number) for number in range(SESSIONS)))
        with pytest.raises(CapacityReached):
            await KernelEnv(url).connect()
        waiting = [asyncio.ensure_future(connect(url)) for _ in range(OVER)]
        assert all(await asyncio.gather(*(plays(env, f"again {index}") for index, env in enumerate(clients[-OVER:]))))
        assert not any(task.done() for task in waiting)
        for env in clients[:OVER]:
            await env.close()
        late = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
        assert all(await asyncio.gather(*(plays(env, f"late {index}") for index, env in enumerate(late))))
        await asyncio.gather(*(env.close() for env in (*clients[OVER:], *late)))

    with serve(make_settings(max_sessions=SESSIONS)) as url:
        asyncio.run(scenario(url))


# ---------------------------------------------------------------- half-open sockets

_CLIENT = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], proxy=None) as socket:
    for text in sys.argv[2:]:
        socket.send(text)
        socket.recv()
        print("answered", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def client(url: str, *messages: str) -> Iterator[subprocess.Popen[str]]:
    """A client in a process of its own, which answers pings and can be stopped."""
    command = [sys.executable, "-c", _CLIENT, url.replace("http", "ws") + "/ws", *messages]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def connect_when_free(url: str) -> KernelEnv:
    """A session, as soon as there is a slot."""
    async with asyncio.timeout(WAIT_S):
        return await readme_connect()(url)


@pytest.mark.parametrize("in_a_step", [False, True])
def test_a_half_open_socket_is_reaped(in_a_step: bool) -> None:
    evaluator = ScriptedEvaluator(never)
    reset = json.dumps({"type": "reset", "data": {"task_id": TASK}})
    step = json.dumps({"type": "step", "data": {"code": demo_kernels.GOOD}})

    async def scenario(url: str) -> None:
        env = await connect_when_free(url)
        evaluator.answer = as_mock
        assert await plays(env, "next")
        await env.close()

    with serve(make_settings(max_sessions=1), evaluator, ws_ping_interval=0.5, ws_ping_timeout=4.0) as url:
        with client(url, reset, *([step] if in_a_step else [])) as process:
            assert process.stdout is not None and process.stdout.readline() == "answered\n"
            assert not in_a_step or evaluator.entered.wait(WAIT_S)
            process.send_signal(signal.SIGSTOP)
            asyncio.run(scenario(url))
            assert process.poll() is None
    assert evaluator.cancelled.is_set() is in_a_step


# ---------------------------------------------------------------- late answers


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_an_answer_that_comes_late_is_no_other_steps_answer(how: str) -> None:
    """The evaluator does not heed that the step is over, and answers it while the next one is evaluated."""
    next_came, late_gone = asyncio.Event(), asyncio.Event()

    async def script(request: Evaluate) -> EvalResult:
        if request.code != kernel("late"):
            next_came.set()
            await late_gone.wait()
            return await as_mock(request)
        with contextlib.suppress(asyncio.CancelledError):
            await never(request)
        await next_came.wait()
        late_gone.set()
        return await as_mock(request)

    evaluator = ScriptedEvaluator(script)

    async def scenario(url: str) -> None:
        old = KernelEnv(url)
        await old.reset(task_id=TASK)
        if how == "timed out":
            old._message_timeout = 0.5
        step = asyncio.ensure_future(old.step(KernelAction(code=kernel("late"))))
        assert await asyncio.to_thread(evaluator.entered.wait, WAIT_S)
        if how == "cancelled":
            step.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else SessionLost):
            await step
        new = KernelEnv(url)
        assert await plays(new, "next")
        await new.close()
        with pytest.raises(SessionLost):
            await old.step(KernelAction(code=kernel("after")))
        await old.close()

    with serve(make_settings(), evaluator) as url:
        asyncio.run(scenario(url))
