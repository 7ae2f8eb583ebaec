"""The client against a server that misbehaves on purpose: a scripted WebSocket server, no OpenEnv behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from kernel_env.client import DEFAULT_MESSAGE_TIMEOUT_S, STEP_DEADLINE_MARGIN_S, KernelEnv
from kernel_env.errors import CapacityReached, InvalidRequestError, KernelEnvError, ServerError, SessionLost
from kernel_env.models import KernelAction, Stage

Handler = Callable[[ServerConnection, dict[str, Any]], None]
STATE = {"type": "state", "data": {"episode_id": None, "step_count": 0}}


def observation(feedback: str = "", **data: Any) -> dict[str, Any]:
    """An observation frame."""
    return {
        "type": "observation",
        "data": {"observation": {"feedback": feedback}, "reward": 0.5, "done": False, **data},
    }


def error(code: str, message: str, **data: Any) -> dict[str, Any]:
    """An error frame."""
    return {"type": "error", "data": {"code": code, "message": message, **data}}


@contextlib.contextmanager
def scripted(handler: Handler, handshakes: list[dict[str, str]] | None = None) -> Iterator[str]:
    """A server that answers `state` itself and leaves every other message to `handler`; yields its URL."""

    def serve_one(socket: ServerConnection) -> None:
        if handshakes is not None and socket.request is not None:
            handshakes.append(dict(socket.request.headers.raw_items()))
        for text in socket:
            message = json.loads(text)
            if message["type"] == "state":
                socket.send(json.dumps(STATE))
            elif message["type"] == "close":
                return
            else:
                handler(socket, message)

    with serve(serve_one, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def answer(frame: dict[str, Any]) -> Handler:
    """A handler that always sends this frame."""
    return lambda socket, message: socket.send(json.dumps(frame))


def test_parses_result_and_keeps_reward_and_done() -> None:
    frame = observation(reward=1.25, done=True)
    frame["data"]["observation"] = {"stage": "scored", "outcome": "scored", "speedup": 2.0, "task_id": "level1/19_ReLU"}
    with scripted(answer(frame)) as url, KernelEnv(url).sync() as env:
        result = env.step(KernelAction(code="x"))
    assert (result.reward, result.done) == (1.25, True)
    assert (result.observation.reward, result.observation.done) == (1.25, True)
    assert result.observation.stage is Stage.SCORED
    assert result.observation.speedup == 2.0


def test_fields_of_a_newer_server_are_ignored() -> None:
    frame = observation("hello")
    frame["data"]["observation"]["invented_later"] = 1
    with scripted(answer(frame)) as url, KernelEnv(url).sync() as env:
        assert env.reset().observation.feedback == "hello"


def test_modal_keys_travel_on_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_PROXY_KEY", "wk-1")
    monkeypatch.setenv("MODAL_PROXY_SECRET", "ws-2")
    handshakes: list[dict[str, str]] = []
    with scripted(answer(observation()), handshakes) as url, KernelEnv(url, headers={"X-Extra": "3"}).sync() as env:
        env.reset()
    sent = {name.lower(): value for name, value in handshakes[0].items()}
    assert (sent["modal-key"], sent["modal-secret"], sent["x-extra"]) == ("wk-1", "ws-2", "3")


def test_no_modal_headers_without_keys() -> None:
    handshakes: list[dict[str, str]] = []
    with scripted(answer(observation()), handshakes) as url, KernelEnv(url).sync() as env:
        env.reset()
    assert not [name for name in handshakes[0] if name.lower().startswith("modal-")]


def test_one_modal_key_without_the_other_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_PROXY_KEY", "wk-1")
    with pytest.raises(ValueError, match="MODAL_PROXY_SECRET"):
        KernelEnv("http://127.0.0.1:1")


def test_timeout_loses_the_session_and_a_late_answer_is_never_returned() -> None:
    release = threading.Event()

    def late(socket: ServerConnection, message: dict[str, Any]) -> None:
        if message["type"] == "step":
            release.wait()
            with contextlib.suppress(Exception):
                socket.send(json.dumps(observation("the answer to the first step")))
        else:
            socket.send(json.dumps(observation()))

    with scripted(late) as url, KernelEnv(url, message_timeout_s=0.5).sync() as env:
        try:
            env.reset()
            with pytest.raises(SessionLost) as first:
                env.step(KernelAction(code="first"))
        finally:
            release.set()
        assert first.value.code == "timeout"
        for call in (lambda: env.step(KernelAction(code="second")), env.state, env.reset, env.connect):
            with pytest.raises(SessionLost):
                call()


def test_cancelled_call_loses_the_session() -> None:
    received, release = threading.Event(), threading.Event()

    def hold(socket: ServerConnection, message: dict[str, Any]) -> None:
        received.set()
        release.wait()

    async def scenario(url: str) -> None:
        async with KernelEnv(url) as env:
            call = asyncio.ensure_future(env.reset())
            await asyncio.to_thread(received.wait)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            release.set()
            with pytest.raises(SessionLost) as lost:
                await env.state()
            assert lost.value.code == "cancelled"

    with scripted(hold) as url:
        try:
            asyncio.run(scenario(url))
        finally:
            release.set()


def test_calls_of_one_client_do_not_mix() -> None:
    def echo(socket: ServerConnection, message: dict[str, Any]) -> None:
        socket.send(json.dumps(observation(message["data"]["code"])))

    async def scenario(url: str) -> list[str]:
        async with KernelEnv(url) as env:
            results = await asyncio.gather(*(env.step(KernelAction(code=str(number))) for number in range(20)))
            return [result.observation.feedback for result in results]

    with scripted(echo) as url:
        assert asyncio.run(scenario(url)) == [str(number) for number in range(20)]


def test_closed_socket_loses_the_session() -> None:
    with scripted(lambda socket, message: socket.close()) as url, KernelEnv(url).sync() as env:
        for _ in range(2):
            with pytest.raises(SessionLost) as lost:
                env.reset()
            assert lost.value.code == "closed"


def test_an_answer_that_is_not_json_ends_the_session() -> None:
    with scripted(lambda socket, message: socket.send("nonsense")) as url, KernelEnv(url).sync() as env:
        for _ in range(2):
            with pytest.raises(ServerError) as raised:
                env.reset()
            assert raised.value.code == "bad_answer"


def observed(**fields: Any) -> dict[str, Any]:
    """An observation frame with these fields in the observation."""
    frame = observation()
    frame["data"]["observation"] = fields
    return frame


ODD: dict[str, Any] = {
    "list": [],
    "null": None,
    "no type": {"data": observation()["data"]},
    "state": STATE,
    "no data": {"type": "observation"},
    "data list": {"type": "observation", "data": []},
    "no observation": {"type": "observation", "data": {"reward": 0.5, "done": False}},
    "observation list": observation(observation=[]),
    "nan": observation(reward=float("nan")),
    "infinity": observation(reward=float("inf")),
    "huge": observation(reward=10**400),
    "text reward": observation(reward="1.0"),
    "true reward": observation(reward=True),
    "no reward": {"type": "observation", "data": {"observation": {}, "done": False}},
    "text done": observation(done="false"),
    "done number": observation(done=0),
    "no done": {"type": "observation", "data": {"observation": {}, "reward": None}},
    "text correct": observed(correct="false"),
    "text turn": observed(turn="1"),
    "unknown stage": observed(stage="sleeping"),
    "error data": {"type": "error", "data": "no"},
    "error null": {"type": "error", "data": None},
    "error code": {"type": "error", "data": {"code": [], "message": "no"}},
    "error message": {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": 5}},
    "error empty": {"type": "error", "data": {}},
}


@pytest.mark.parametrize("text", [*map(json.dumps, ODD.values()), "[" * 200_000], ids=[*ODD, "deep"])
def test_an_odd_answer_is_a_typed_error_and_ends_the_session(text: str) -> None:
    with scripted(lambda socket, message: socket.send(text)) as url, KernelEnv(url).sync() as env:
        for call in (lambda: env.step(KernelAction(code="x")), env.reset, env.state):
            with pytest.raises(ServerError) as raised:
                call()
            assert raised.value.code == "bad_answer"
            assert len(raised.value.message) < 1000


@pytest.mark.parametrize(
    "frame", [observation(), {"type": "state", "data": None}, {"type": "state", "data": {"turn": "1"}}]
)
def test_an_odd_state_ends_the_session(frame: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(answer(observation())) as url, KernelEnv(url).sync() as env:
        env.reset()
        monkeypatch.setitem(globals(), "STATE", frame)
        for _ in range(2):
            with pytest.raises(ServerError) as raised:
                env.state()
            assert raised.value.code == "bad_answer"


def test_an_odd_first_answer_shows_at_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STATE", observation())
    with scripted(answer(observation())) as url:
        env = KernelEnv(url).sync()
        with pytest.raises(ServerError, match="bad_answer"):
            env.connect()
        env.close()


@pytest.mark.parametrize("errors", [None, 5, [5, {}, {"loc": 5}, {"loc": ["code"], "msg": ["x"]}]])
def test_odd_details_of_a_validation_error_are_shown_as_they_are(errors: Any) -> None:
    with scripted(answer(error("VALIDATION_ERROR", "Invalid", errors=errors))) as url, KernelEnv(url).sync() as env:
        with pytest.raises(InvalidRequestError) as raised:
            env.reset()
        assert raised.value.code == "validation_error"
        assert env.state().step_count == 0


def test_arguments_that_are_not_json_are_refused_and_leave_the_session_usable() -> None:
    with scripted(answer(observation("hello"))) as url, KernelEnv(url).sync() as env:
        with pytest.raises(InvalidRequestError) as raised:
            env.reset(seed=object())
        assert raised.value.code == "invalid_argument"
        assert env.reset().observation.feedback == "hello"


@pytest.mark.parametrize(
    ("frame", "kind", "code", "message"),
    [
        (
            error("EXECUTION_ERROR", "[unknown_task] No such task."),
            InvalidRequestError,
            "unknown_task",
            "No such task.",
        ),
        (error("EXECUTION_ERROR", "[internal_error] See the log."), ServerError, "internal_error", "See the log."),
        (error("EXECUTION_ERROR", "something else"), ServerError, "execution_error", "something else"),
        (error("UNKNOWN_TYPE", "no"), ServerError, "unknown_type", "no"),
        (
            error("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["code"], "msg": "too long"}]),
            InvalidRequestError,
            "validation_error",
            "Invalid message; code: too long",
        ),
    ],
)
def test_error_frames_are_typed_and_leave_the_session_usable(
    frame: dict[str, Any], kind: type[KernelEnvError], code: str, message: str
) -> None:
    with scripted(answer(frame)) as url, KernelEnv(url).sync() as env:
        with pytest.raises(KernelEnvError) as raised:
            env.reset()
        assert type(raised.value) is kind
        assert (raised.value.code, raised.value.message) == (code, message)
        assert env.state().step_count == 0


def test_capacity_shows_at_connect_even_when_the_socket_is_closed_already() -> None:
    closed = threading.Event()

    def refuse(socket: ServerConnection) -> None:
        socket.send(json.dumps(error("CAPACITY_REACHED", "Server at capacity: 1/1")))
        socket.close()
        closed.set()

    with serve(refuse, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        env = KernelEnv(f"ws://127.0.0.1:{server.socket.getsockname()[1]}").sync()
        try:
            for call in (env.connect, env.reset):
                with pytest.raises(CapacityReached) as raised:
                    call()
                assert raised.value.code == "capacity_reached"
            assert closed.wait(60)
        finally:
            env.close()
            server.shutdown()
            thread.join()


def test_no_server_is_a_connection_error() -> None:
    env = KernelEnv("http://127.0.0.1:1").sync()
    try:
        with pytest.raises(ConnectionError):
            env.reset()
    finally:
        env.close()


def test_timeout_follows_the_episodes_step_deadline() -> None:
    client = KernelEnv("http://127.0.0.1:1")
    assert client._message_timeout == DEFAULT_MESSAGE_TIMEOUT_S
    with scripted(answer(observation())) as url:
        client = KernelEnv(url)
        with client.sync() as env:
            env.reset(step_deadline_s=1000)
            assert client._message_timeout == 1000 + STEP_DEADLINE_MARGIN_S
            env.reset()
            assert client._message_timeout == DEFAULT_MESSAGE_TIMEOUT_S


def test_lone_surrogates_are_replaced_before_they_are_sent() -> None:
    def echo(socket: ServerConnection, message: dict[str, Any]) -> None:
        socket.send(json.dumps(observation(message["data"]["code"])))

    with scripted(echo) as url, KernelEnv(url).sync() as env:
        action = KernelAction.model_construct(code="a\ud800b")
        assert env.step(action).observation.feedback == "a?b"


@pytest.mark.parametrize("kind", [CapacityReached, InvalidRequestError, ServerError, SessionLost])
def test_errors_survive_pickling(kind: type[KernelEnvError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("a_code", "a message")))
    assert type(copy) is kind
    assert (copy.code, copy.message) == ("a_code", "a message")


def test_import_is_light_and_never_brings_torch() -> None:
    program = (
        "import sys, kernel_env\n"
        "assert not {'openenv', 'pydantic', 'websockets'} & set(sys.modules)\n"
        "assert 'KernelEnv' in dir(kernel_env)\n"
        "for name in kernel_env.__all__: getattr(kernel_env, name)\n"
        "assert 'torch' not in sys.modules and 'server' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
