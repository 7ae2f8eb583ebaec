"""The bearer token that a server may ask for. Pure ASGI; reads the Authorization header and touches nothing else.

With a token set, every HTTP request and every WebSocket handshake without it is answered with 401 before anything else
sees it. /health alone stays open, for the probes of a container's host; it says less then (`is_trusted`).
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from server.disconnect import App, Message, Receive, Send

OPEN_PATH = "/health"
_TRUSTED = "kernel_env.trusted"
_BODY = json.dumps({"detail": "This server wants a token: Authorization: Bearer <KERNEL_ENV_TOKEN>."}).encode()
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_BODY)).encode()),
    (b"www-authenticate", b"Bearer"),
]


def is_trusted(scope: Mapping[str, Any]) -> bool:
    """Whether the request came with the token, or the server asks for none."""
    return scope.get(_TRUSTED, True)


class AuthMiddleware:
    """Wraps an ASGI app; see the module's docstring."""

    def __init__(self, app: App, token: SecretStr) -> None:
        self.app = app
        self._token = token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        trusted = self._carries_token(scope)
        if trusted or (scope["type"] == "http" and scope["path"] == OPEN_PATH):
            scope[_TRUSTED] = trusted
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send, "http.response")
        elif "websocket.http.response" in scope.get("extensions", {}):
            await _refuse(send, "websocket.http.response")
        else:
            await send({"type": "websocket.close", "code": 1008})  # a handshake that ends so is answered with 403

    def _carries_token(self, scope: Message) -> bool:
        values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        scheme, _, given = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        expected = self._token.get_secret_value().encode()
        return hmac.compare_digest(given.strip(), expected) and scheme.lower() == b"bearer"


async def _refuse(send: Send, kind: str) -> None:
    await send({"type": f"{kind}.start", "status": 401, "headers": _HEADERS})
    await send({"type": f"{kind}.body", "body": _BODY})
