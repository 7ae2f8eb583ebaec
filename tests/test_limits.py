"""What one client may cost the others, over real sockets: sessions, messages ahead, bytes, values, quoted input."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import WAIT_S, ScriptedEvaluator, make_settings, never, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from kernel_env import demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import InvalidRequestError
from kernel_env.models import MAX_CODE_CHARS, MAX_MESSAGE_BYTES, KernelAction, Outcome
from server.disconnect import MAX_MESSAGES_AHEAD
from server.limits import MAX_ERROR_CHARS, MAX_VALUES
from server.static_checks import MAX_CODE_BYTES

TASK = "level1/23_Softmax"
STATE = '{"type": "state"}'


def websocket(url: str, path: str = "/ws") -> ClientConnection:
    """A client that keeps to no rules."""
    return connect(url.replace("http", "ws") + path, proxy=None, max_size=None)


def ask(client: ClientConnection, text: str | bytes) -> dict[str, Any]:
    """The answer to a raw frame."""
    client.send(text)
    return json.loads(client.recv(timeout=WAIT_S))


def post(url: str, path: str, body: str | bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON of a POST."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=WAIT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.load(response)
    finally:
        connection.close()


# ---------------------------------------------------------------- sessions without a connection


@pytest.fixture(scope="module")
def narrow_server() -> Iterator[str]:
    """A server with one session slot."""
    with serve(make_settings(max_sessions=1)) as url:
        yield url


def test_no_route_takes_a_session_without_a_connection(narrow_server: str) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
    for _ in range(2):
        code, body = post(narrow_server, "/mcp", json.dumps(request))
        assert code == 200 and body["jsonrpc"] == "2.0"  # what `openenv validate --url` looks for
        assert "result" not in body and body["error"]["code"] == -32601
    with pytest.raises(InvalidStatus):
        websocket(narrow_server, "/mcp")
    with KernelEnv(narrow_server).sync() as env:
        env.reset(task_id=TASK)


# ---------------------------------------------------------------- messages ahead


@pytest.mark.parametrize("vanishes", [True, False])
def test_a_client_that_sends_far_ahead_is_cut_off_and_frees_its_worker(vanishes: bool) -> None:
    evaluator = ScriptedEvaluator(never)
    with serve(make_settings(max_sessions=1), evaluator) as url, websocket(url) as client:
        ask(client, json.dumps({"type": "reset", "data": {"task_id": TASK}}))
        client.send(json.dumps({"type": "step", "data": {"code": demo_kernels.GOOD}}))
        assert evaluator.entered.wait(WAIT_S)
        with contextlib.suppress(ConnectionClosed):  # it may be cut off before it has sent all
            for _ in range(2 * MAX_MESSAGES_AHEAD):
                client.send(STATE)
        if vanishes:
            with contextlib.suppress(OSError):
                client.socket.shutdown(socket.SHUT_RDWR)
        else:
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(timeout=WAIT_S)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008 and "ahead" in closed.value.rcvd.reason
        assert evaluator.cancelled.wait(WAIT_S)


def test_a_few_messages_ahead_are_answered_in_order(mock_server: str) -> None:
    with websocket(mock_server) as client:
        for _ in range(MAX_MESSAGES_AHEAD - 1):
            client.send(STATE)
        for _ in range(MAX_MESSAGES_AHEAD - 1):
            assert json.loads(client.recv(timeout=WAIT_S))["type"] == "state"


# ---------------------------------------------------------------- large and odd messages


def test_a_frame_that_is_too_large_is_refused_with_a_reason(mock_server: str) -> None:
    with websocket(mock_server) as client:
        assert ask(client, STATE + " " * (MAX_MESSAGE_BYTES - len(STATE)))["type"] == "state"
        with pytest.raises(ConnectionClosed) as closed:
            ask(client, STATE + " " * MAX_MESSAGE_BYTES)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    assert str(MAX_MESSAGE_BYTES) in closed.value.rcvd.reason


def test_every_source_that_can_be_judged_fits_and_the_client_holds_back_what_does_not(mock_server: str) -> None:
    with KernelEnv(mock_server).sync() as env:
        env.reset(task_id=TASK)
        padding = "\x01" * (MAX_CODE_BYTES - len(demo_kernels.GOOD))  # six bytes each as JSON
        assert env.step(KernelAction(code=demo_kernels.GOOD + padding)).observation.outcome is not Outcome.SCORED
        with pytest.raises(InvalidRequestError) as raised:
            env.step(KernelAction(code="\x01" * MAX_CODE_CHARS))
        assert raised.value.code == "too_large"
        assert env.state().turn == 1


@pytest.mark.parametrize(
    "frame",
    [
        json.dumps({"type": "step", "data": {"code": [[]] * (MAX_MESSAGE_BYTES // 8)}}),
        json.dumps({"type": "step", "data": {"code": "x", **{f"name{n}": 1 for n in range(MAX_VALUES)}}}),
        json.dumps({"type": "state", **{f"name{n}": "x" for n in range(MAX_VALUES)}}),
        "[" * 100_000,
        '{"type": ' + "9" * 5000 + "}",
        "[]",
        "null",
        STATE.encode(),
    ],
    ids=["lists", "arguments", "names", "deep", "digits", "list", "null", "binary"],
)
def test_an_odd_message_is_refused_briefly_and_the_session_lives(mock_server: str, frame: str | bytes) -> None:
    with websocket(mock_server) as client:
        answer = ask(client, frame)
        assert (answer["type"], answer["data"]["code"]) == ("error", "VALIDATION_ERROR")
        assert len(json.dumps(answer)) < 1000
        assert ask(client, STATE)["type"] == "state"


@pytest.mark.parametrize(
    "data",
    [
        {"code": "x" * 3_000_000},
        {"kode": "x" * 3_000_000},
        {"code": {"x": "y" * 3_000_000}},
        {"code": "x", "n" * 3_000_000: 1},
        "x" * 3_000_000,
        {"code": "x", **{f"name{n}": "x" * 1000 for n in range(500)}},
    ],
    ids=["long", "name", "nested", "long name", "no object", "many"],
)
def test_a_wrong_step_is_not_quoted_whole(mock_server: str, data: Any) -> None:
    with websocket(mock_server) as client:
        answer = ask(client, json.dumps({"type": "step", "data": data}))
        assert answer["data"]["code"] == "VALIDATION_ERROR"
        assert answer["data"]["errors"][0]["msg"]
        assert len(json.dumps(answer)) < 2 * MAX_ERROR_CHARS
        assert ask(client, STATE)["type"] == "state"
    code, body = post(mock_server, "/step", json.dumps({"action": data}))
    assert code == 422
    assert len(json.dumps(body)) < 2 * MAX_ERROR_CHARS


def test_a_body_that_is_too_large_is_413(mock_server: str) -> None:
    # Only said to be so large: nothing of it need be read.
    code, body = post(mock_server, "/reset", b"", {"Content-Length": str(MAX_MESSAGE_BYTES + 1)})
    assert code == 413 and str(MAX_MESSAGE_BYTES) in body["detail"]
    # Its length is not declared, and its last byte is the one that is too much.
    chunk = b"%x\r\n%b\r\n" % (MAX_MESSAGE_BYTES + 1, b" " * (MAX_MESSAGE_BYTES + 1))
    assert post(mock_server, "/reset", chunk, {"Transfer-Encoding": "chunked"})[0] == 413
    assert post(mock_server, "/reset", json.dumps({"task_id": TASK}).rjust(MAX_MESSAGE_BYTES))[0] == 200
