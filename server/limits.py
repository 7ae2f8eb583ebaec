"""Bounds what one request may cost: bytes, values, how much of a wrong one is quoted back, and the wait for a client
that does not read. Pure ASGI.

OpenEnv parses and validates on the event loop that all sessions share, and quotes an invalid input whole. So a
WebSocket message is looked at before OpenEnv sees it, and a long error after; a refused one leaves its session alive.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from kernel_env.models import MAX_MESSAGE_BYTES
from server.disconnect import App, Message, Receive, Send
from server.text import bound

# For the network to take one answer. A client that reads nothing fills every buffer, and would hold its slot for good.
SEND_TIMEOUT_S = 60.0
# A reset has at most seven arguments and a step one.
MAX_VALUES = 1000
MAX_ERRORS = 10
MAX_QUOTED_CHARS = 200
MAX_ERROR_CHARS = 8192
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ERROR_FRAME = '{"type":"error"'


class LimitMiddleware:
    """Wraps an ASGI app; see the module's docstring. Frames over MAX_MESSAGE_BYTES are uvicorn's to refuse."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        taken = True

        async def in_time(message: Message) -> None:
            nonlocal taken
            if not taken:
                return
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await send(message)
            except TimeoutError:
                taken = False

        async def checked() -> Message:
            while True:
                if not taken:
                    return {"type": "websocket.disconnect", "code": 1008}
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                text, problem = _read(message.get("text"))
                if problem is None:
                    return {**message, "text": text}
                data = {"code": "VALIDATION_ERROR", "message": problem, "errors": []}
                await in_time({"type": "websocket.send", "text": json.dumps({"type": "error", "data": data})})

        async def shortened(message: Message) -> None:
            text = message.get("text")
            if isinstance(text, str) and len(text) > MAX_ERROR_CHARS and text.startswith(_ERROR_FRAME):
                message = {**message, "text": json.dumps(_short_frame(json.loads(text)))}
            await in_time(message)

        await self.app(scope, checked, shortened)

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        if _declared_bytes(scope) > MAX_MESSAGE_BYTES:
            await _too_large(send)
            return
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client is gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_MESSAGE_BYTES:
                await _too_large(send)
                return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replayed, send)


def short_errors(errors: list[Any]) -> list[Any]:
    """Pydantic's list of errors as it may be sent: few of them, each quoting little of what was wrong."""
    kept: list[Any] = []
    for error in errors[:MAX_ERRORS]:
        if not isinstance(error, dict):
            continue
        short = {
            "type": error.get("type"),
            "loc": [bound(part, MAX_QUOTED_CHARS) if isinstance(part, str) else part for part in error.get("loc", ())],
            "msg": bound(str(error.get("msg", "")), MAX_QUOTED_CHARS),
        }
        given = error.get("input")
        text = given if isinstance(given, str) else None
        if given is None or isinstance(given, bool | int | float):
            short["input"] = given
        else:
            short["input"] = bound(text, MAX_QUOTED_CHARS) if text is not None else f"({type(given).__name__})"
        kept.append(short)
    return kept


def _short_frame(frame: dict[str, Any]) -> dict[str, Any]:
    data = dict(frame["data"])
    data["message"] = bound(str(data.get("message", "")), MAX_ERROR_CHARS // 2)
    if isinstance(data.get("errors"), list):
        data["errors"] = short_errors(data["errors"])
    return {"type": "error", "data": data}


def _read(text: str | None) -> tuple[str, str | None]:
    """A message as OpenEnv may see it, and why it is refused or None. What is merely not JSON, OpenEnv answers well."""
    if text is None:
        return "", "A message must be a text frame."
    try:
        message = json.loads(text)
    except json.JSONDecodeError:
        return text, None
    except (ValueError, RecursionError):
        return text, "The message is nested too deeply, or holds a number with too many digits."
    if not isinstance(message, dict):
        return text, "A message must be a JSON object."
    values = 0
    open_values: list[Any] = [message]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict | list):
            values += len(value)
            if values > MAX_VALUES:
                return text, f"A message may hold at most {MAX_VALUES} values."
            open_values.extend(value.values() if isinstance(value, dict) else value)
    if _SURROGATE.search(text):
        # OpenEnv quotes what is invalid, and a lone surrogate in the quotation ends the session.
        written = json.dumps(message, ensure_ascii=False)
        text = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text, None


def _declared_bytes(scope: Message) -> int:
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


async def _too_large(send: Send) -> None:
    body = json.dumps({"detail": f"A request body may have at most {MAX_MESSAGE_BYTES} bytes."}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
