"""The bearer token: asked for on every route and on the WebSocket, sent by every client, and written nowhere."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import WAIT_S, make_settings, serve
from pydantic import SecretStr, ValidationError
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from kernel_env import cli, demo_kernels
from kernel_env.client import KernelEnv
from kernel_env.errors import InvalidRequestError
from kernel_env.integrations.trl import KernelBenchTool
from kernel_env.models import KernelAction
from server import app as app_module
from server.auth import AuthMiddleware
from server.disconnect import Message
from server.settings import Settings, get_settings

TOKEN = "s3cret-token_of.this/test+=="
TASK = "level1/23_Softmax"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `server` logs."""
    return tmp_path_factory.mktemp("log") / "eval.jsonl"


@pytest.fixture(scope="module")
def server(log: Path) -> Iterator[str]:
    """A server that asks for the token."""
    with serve(make_settings(token=SecretStr(TOKEN), eval_log=log)) as url:
        yield url


def status(url: str, *authorizations: str, method: str = "GET") -> tuple[int, bytes, str | None]:
    """Status, body and WWW-Authenticate of a request with these Authorization headers."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=WAIT_S)
    connection.putrequest(method, parts.path)
    for value in authorizations:
        connection.putheader("Authorization", value)
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    response = connection.getresponse()
    try:
        return response.status, response.read(), response.getheader("WWW-Authenticate")
    finally:
        connection.close()


WRONG = [(), ("Bearer",), ("Bearer ",), ("Bearer " + TOKEN[:-1],), (f"Bearer {TOKEN}x",), (TOKEN,), (f"Basic {TOKEN}",)]
WRONG += [(f"Bearer {TOKEN}", f"Bearer {TOKEN}"), ("Bearer \xff",)]


@pytest.mark.parametrize("given", WRONG)
def test_every_route_refuses_a_request_without_the_token(server: str, given: tuple[str, ...]) -> None:
    routes = ["/ready", "/status", "/metrics", "/metadata", "/schema", "/state", "/docs", "/openapi.json", "/nothing"]
    routes += ["/health/", "/web", "//health"]
    for route, method in [
        *((route, "GET") for route in routes),
        ("/reset", "POST"),
        ("/step", "POST"),
        ("/mcp", "POST"),
    ]:
        code, body, challenge = status(server + route, *given, method=method)
        assert (code, challenge) == (401, "Bearer"), route
        assert TOKEN.encode() not in body


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_every_route_answers_with_the_token(server: str, scheme: str) -> None:
    for route in ("/ready", "/status", "/metrics", "/metadata", "/schema", "/openapi.json"):
        assert status(server + route, f"{scheme} {TOKEN}")[0] == 200, route


def test_health_is_open_but_says_what_the_server_is_only_to_who_has_the_token(server: str) -> None:
    code, body, _ = status(f"{server}/health")
    assert (code, json.loads(body)) == (200, {"status": "healthy"})
    trusted = json.loads(status(f"{server}/health", f"Bearer {TOKEN}")[1])
    assert trusted["evaluator"] == "mock"


@pytest.mark.parametrize("path", ["/ws", "/mcp", "/health", "/nothing"])
def test_a_handshake_without_the_token_is_refused_before_there_is_a_session(server: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer no"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(server.replace("http", "ws") + path, additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["WWW-Authenticate"] == "Bearer"
    sessions = json.loads(status(f"{server}/status", f"Bearer {TOKEN}")[1])["sessions"]
    assert sessions["open"] == 0


def test_a_server_without_the_denial_extension_closes_the_handshake() -> None:
    sent: list[Message] = []

    async def scenario() -> None:
        async def app(scope: object, receive: object, send: object) -> None:
            raise AssertionError("the app must not be reached")

        async def receive() -> Message:
            raise AssertionError("nothing is read")

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/ws", "headers": [], "extensions": {}}
        await AuthMiddleware(app, SecretStr(TOKEN))(scope, receive, send)

    asyncio.run(scenario())
    assert [message["type"] for message in sent] == ["websocket.close"]


# ---------------------------------------------------------------- clients


def play(env: KernelEnv) -> float | None:
    with env.sync() as session:
        session.reset(task_id=TASK)
        return session.step(KernelAction(code=demo_kernels.GOOD)).reward


def test_the_client_sends_its_argument_or_the_variable(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(KernelEnv(server, token=TOKEN)) is not None
    assert play(KernelEnv(server, headers={"authorization": f"Bearer {TOKEN}"})) is not None
    monkeypatch.setenv("KERNEL_ENV_TOKEN", TOKEN)
    assert play(KernelEnv(server)) is not None
    monkeypatch.setenv("KERNEL_ENV_TOKEN", "another")
    assert play(KernelEnv(server, token=TOKEN)) is not None
    assert play(KernelEnv(server, headers={"Authorization": f"Bearer {TOKEN}"})) is not None


@pytest.mark.parametrize("given", [None, "wrong"])
def test_the_client_says_that_the_server_wants_another_token(server: str, given: str | None) -> None:
    env = KernelEnv(server, token=given).sync()
    try:
        with pytest.raises(InvalidRequestError, match="KERNEL_ENV_TOKEN") as refused:
            env.reset(task_id=TASK)
        assert refused.value.code == "unauthorized"
    finally:
        env.close()


def test_the_trl_tool_sends_the_variable(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_ENV_URL", server)
    with pytest.raises(InvalidRequestError):
        KernelBenchTool().reset(task_id=TASK)
    monkeypatch.setenv("KERNEL_ENV_TOKEN", TOKEN)
    tool = KernelBenchTool()
    assert "class Model(" in str(tool.reset(task_id=TASK))
    tool._disconnect()


def test_the_demo_plays_with_a_server_that_asks_for_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_TOKEN", TOKEN)
    assert cli.main(["demo"]) == 0
    captured = capsys.readouterr()
    assert "The episode is over" in captured.out
    assert TOKEN not in captured.out + captured.err


# ---------------------------------------------------------------- secrecy and settings


def test_no_log_has_the_token(server: str, log: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        play(KernelEnv(server, token=TOKEN))
        env = KernelEnv(server, token=TOKEN + "x").sync()
        with pytest.raises(InvalidRequestError) as refused:
            env.reset()
        env.close()
    assert "GET /ws" in caplog.text  # the handshake was logged, but for the header
    assert TOKEN not in caplog.text
    assert TOKEN not in str(refused.value) + repr(refused.value.__cause__)
    assert log.stat().st_size > 0
    assert TOKEN not in log.read_text()


def test_the_settings_do_not_show_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_ENV_TOKEN", TOKEN)
    settings = Settings()
    assert settings.token is not None and settings.token.get_secret_value() == TOKEN
    assert TOKEN not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize("value", ["", " ", "two words", "tab\there", "ümlaut", "line\n"])
def test_a_token_that_no_header_carries_stops_the_server_and_is_not_shown(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_TOKEN", value)
    with pytest.raises(ValidationError):
        Settings()
    get_settings.cache_clear()
    with pytest.raises(SystemExit) as stopped:
        app_module.main([])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "token" in message and "visible ASCII" in message
    assert len(value.strip()) < 2 or value not in message


def test_a_token_that_no_header_carries_is_refused_by_the_client() -> None:
    with pytest.raises(ValueError, match="KERNEL_ENV_TOKEN") as refused:
        KernelEnv("http://127.0.0.1:1", token="two\r\nlines")
    assert "lines" not in str(refused.value)


def test_the_judge_is_not_given_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cpu_pool import AVAILABLE, open_pool

    if not AVAILABLE:
        pytest.skip("the cpu evaluator needs Linux, torch and triton")
    monkeypatch.setenv("KERNEL_ENV_TOKEN", TOKEN)
    with open_pool() as pool:
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pool.processes()]
    assert len(environments) >= 2
    assert any(b"PYTHONPATH" in environment for environment in environments)
    assert all(TOKEN.encode() not in environment for environment in environments)
    assert os.environ["KERNEL_ENV_TOKEN"] == TOKEN
