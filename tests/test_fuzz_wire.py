"""Arbitrary frames over a real socket: each is answered, briefly and without the server's secrets, and none ends the
session but a `close` and what breaks the WebSocket protocol itself. And a client that does not read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT_S, make_settings, serve
from fuzzing import LONGEST_ANSWER, leaks, planted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode
from websockets.sync.client import ClientConnection, connect

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from server import limits
from server.disconnect import Message, Receive, Send

STATE = json.dumps({"type": "state"})
RESET = json.dumps({"type": "reset", "data": {"task_id": "level1/23_Softmax"}})

quick = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**4000), 2**63, 1e308, -0.0])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
RESET_NAMES = ("seed", "split", "task_id", "language", "episode_id", "step_deadline_s", "timeout_s", "func", "self")
PLAUSIBLE = st.sampled_from(
    ["train", "level1/23_Softmax", "../../etc/passwd", "cuda", "", "\0", 0, 3600, demo_kernels.GOOD]
)
DATA = st.one_of(
    JSON,
    st.dictionaries(st.sampled_from(RESET_NAMES), PLAUSIBLE | JSON, max_size=4),
    st.fixed_dictionaries({"code": PLAUSIBLE | JSON}, optional={"metadata": JSON, "timeout_s": JSON}),
)
MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["reset", "step", "state", "mcp"]) | JSON}, optional={"data": DATA, "id": JSON}
)
FRAMES = st.one_of(
    MESSAGES.map(json.dumps),
    JSON.map(json.dumps),
    st.text(max_size=200),
    MESSAGES.map(json.dumps).flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end])),
    st.binary(max_size=200),
    MESSAGES.map(lambda message: json.dumps(message).encode("utf-16")),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a secret in its environment."""
    with planted(), serve(make_settings(max_sessions=4, max_turns=3)) as served:
        yield served


@contextlib.contextmanager
def raw_session(url: str) -> Iterator[socket.socket]:
    """A socket after the handshake, with a small buffer; it says and reads nothing by itself."""
    parts = urllib.parse.urlsplit(url)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(WAIT_S)
        raw.connect((parts.hostname, parts.port))
        headers = ["Host: server", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        key = base64.b64encode(bytes(16)).decode()
        raw.sendall("\r\n".join(["GET /ws HTTP/1.1", *headers, f"Sec-WebSocket-Key: {key}", "", ""]).encode())
        assert raw.recv(1024).startswith(b"HTTP/1.1 101 ")
        yield raw


def masked(data: bytes, opcode: Opcode) -> bytes:
    """One frame of at most 125 bytes, as a client sends it."""
    return bytes([0x80 | opcode, 0x80 | len(data)]) + bytes(4) + data


def open_sessions(url: str) -> int:
    """How many the server counts."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/status", timeout=WAIT_S) as answer:
        return json.load(answer)["sessions"]["open"]


def websocket(url: str) -> ClientConnection:
    """A client that keeps to no rules."""
    return connect(url.replace("http", "ws") + "/ws", proxy=None, max_size=None)


def answer_to(client: ClientConnection, frame: str | bytes) -> dict[str, Any]:
    """The answer to a frame, which must be one that OpenEnv specifies, brief, and without secrets."""
    client.send(frame)
    text = client.recv(timeout=WAIT_S)
    assert isinstance(text, str) and len(text) < LONGEST_ANSWER and not leaks(text)
    answer = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert answer["type"] in ("observation", "state", "error", "mcp")
    if answer["type"] == "error":
        assert answer["data"]["code"] not in ("SESSION_ERROR", "FACTORY_ERROR")
        assert "internal_error" not in answer["data"]["message"]
    text.encode()
    return answer


def closes(frame: str | bytes) -> bool:
    """Whether a frame asks for the session's end."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(frame) if isinstance(frame, str) else None
        return isinstance(message, dict) and message.get("type") == "close"
    return False


@quick
@given(frames=st.lists(FRAMES.filter(lambda frame: not closes(frame)), min_size=1, max_size=4), reset=st.booleans())
def test_any_frame_is_answered_and_the_session_lives(url: str, frames: list[str | bytes], reset: bool) -> None:
    with websocket(url) as client:
        if reset:
            answer_to(client, RESET)
        for frame in frames:
            answer_to(client, frame)
        assert answer_to(client, STATE)["type"] == "state"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "reset", "data": "\ud800"},
        {"type": "reset", "data": {"\udfff": 1}},
        {"type": "step", "data": {"code": "x", "\ud800": "\ud800"}},
        {"type": "\ud800"},
        {"type": "state", "\ud800": ["\ud800"]},
    ],
    ids=["data", "argument", "field", "type", "extra"],
)
def test_a_lone_surrogate_anywhere_leaves_the_session_alive(url: str, message: dict[str, Any]) -> None:
    with websocket(url) as client:
        assert answer_to(client, json.dumps(message))["type"] == "error"
        assert answer_to(client, STATE)["type"] == "state"


@quick
@given(code=TEXT | PLAUSIBLE.map(str), language=st.sampled_from(["triton", "cuda"]))
def test_any_source_is_judged_and_uses_one_turn(url: str, code: str, language: str) -> None:
    with websocket(url) as client:
        answer_to(client, json.dumps({"type": "reset", "data": {"language": language, "seed": 1}}))
        observation = answer_to(client, json.dumps({"type": "step", "data": {"code": code}}))["data"]["observation"]
        assert (observation["turn"], observation["infra_code"]) == (1, None)


@quick
@given(
    opcode=st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.CLOSE]),
    data=st.binary(max_size=120),
    rest=st.binary(max_size=20),
)
def test_what_breaks_the_protocol_ends_its_own_session_alone(
    url: str, opcode: Opcode, data: bytes, rest: bytes
) -> None:
    """Texts that are not UTF-8, continuations of nothing, odd close frames, and bytes that are no frame at all."""
    with websocket(url) as other:
        answer_to(other, RESET)
        with raw_session(url) as client:
            client.sendall(masked(data, opcode) + rest)
        assert answer_to(other, STATE)["data"]["task_id"] == "level1/23_Softmax"


def test_the_smallest_and_the_largest_messages(url: str) -> None:
    with websocket(url) as other:
        answer_to(other, RESET)
        for empty in ("", b""):
            assert answer_to(other, empty)["type"] == "error"
        for size in (16 * 2**20, 17 * 2**20):
            with websocket(url) as client, pytest.raises(ConnectionClosed) as closed:
                answer_to(client, STATE.ljust(size))
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert answer_to(other, STATE)["data"]["task_id"] == "level1/23_Softmax"


@quick
@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#?"), max_size=30))
def test_no_path_but_ours_takes_a_websocket(url: str, path: str) -> None:
    with contextlib.suppress(InvalidStatus, ValueError, ConnectionClosed):
        with connect(f"{url.replace('http', 'ws')}/x{path}", proxy=None) as client:
            client.recv(timeout=WAIT_S)
            raise AssertionError(f"/x{path} took a WebSocket")


# ---------------------------------------------------------------- a client that does not read


def test_a_client_that_does_not_read_loses_its_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "SEND_TIMEOUT_S", 0.2)
    log = tmp_path / "log.jsonl"
    with serve(make_settings(max_sessions=1, eval_log=log)) as served, raw_session(served) as slow:
        give_up = time.monotonic() + WAIT_S
        logged, is_open = -1, True
        while is_open:  # never more ahead than allowed: each reset is sent when the one before was answered
            assert time.monotonic() < give_up, "the session is open, and reads no more of what is sent"
            if (size := log.stat().st_size) > logged:
                logged = size
                slow.sendall(masked(RESET.encode(), Opcode.TEXT))
            else:
                is_open = open_sessions(served) > 0
        with KernelEnv(served).sync() as env:
            assert env.reset(task_id="level1/23_Softmax").observation.problem


def test_an_answer_that_is_not_taken_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without sockets: the app is told that the client is gone, and what else it says goes nowhere."""
    monkeypatch.setattr(limits, "SEND_TIMEOUT_S", 0.01)
    tried: list[str] = []

    async def receive() -> Message:
        return {"type": "websocket.receive", "text": STATE}

    async def send(message: Message) -> None:
        tried.append(message["text"])
        await asyncio.Event().wait()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.receive"
        for text in ("one", "two"):
            await send({"type": "websocket.send", "text": text})
        assert (await receive())["type"] == "websocket.disconnect"

    async def scenario() -> None:
        async with asyncio.timeout(WAIT_S):
            await limits.LimitMiddleware(app)({"type": "websocket"}, receive, send)

    asyncio.run(scenario())
    assert tried == ["one"]
