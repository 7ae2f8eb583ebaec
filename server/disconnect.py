"""Notices that a WebSocket client is gone while its step is still running. Pure ASGI; touches nothing else.

OpenEnv reads a session's next message only after it has answered the last one, so a client that vanishes during a
step stays unnoticed until the step ends, and holds its session slot and its worker for as long. This middleware reads
ahead, and sets an event that `KernelEnvironment.step_async` waits for beside the evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# A client that has more messages waiting than this is cut off: reading no further would hide that it is gone.
MAX_MESSAGES_AHEAD = 4
_TOO_MANY = {
    "type": "websocket.close",
    "code": 1008,
    "reason": f"more than {MAX_MESSAGES_AHEAD} messages ahead of the answers",
}

_client_gone: ContextVar[asyncio.Event | None] = ContextVar("kernel_env_client_gone", default=None)


def client_gone() -> asyncio.Event | None:
    """The event set when the WebSocket client of the running session disconnects; None outside a WebSocket."""
    return _client_gone.get()


class DisconnectMiddleware:
    """Wraps an ASGI app; see the module's docstring."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection. Everything but WebSockets passes through untouched."""
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        ahead: asyncio.Queue[Message] = asyncio.Queue(MAX_MESSAGES_AHEAD)
        gone = asyncio.Event()

        async def pump() -> None:
            last: Message = {"type": "websocket.disconnect", "code": 1006}
            try:
                while True:
                    message = await receive()
                    if message["type"] == "websocket.disconnect":
                        last = message
                        return
                    if ahead.full():
                        last = {"type": "websocket.disconnect", "code": 1008}
                        break
                    ahead.put_nowait(message)
            finally:
                # Nobody can hear the answers to what is still queued.
                while not ahead.empty():
                    ahead.get_nowait()
                ahead.put_nowait(last)
                gone.set()
            with contextlib.suppress(OSError):
                await send(dict(_TOO_MANY))

        async def guarded_send(message: Message) -> None:
            # An answer to a client that is gone is dropped: OpenEnv would log a traceback for each such session.
            if gone.is_set():
                return
            try:
                await send(message)
            except OSError:
                gone.set()

        token = _client_gone.set(gone)
        pumping = asyncio.create_task(pump())
        try:
            await self.app(scope, ahead.get, guarded_send)
        finally:
            _client_gone.reset(token)
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
