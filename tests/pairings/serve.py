"""Two servers of one distribution of OpenEnv, for tests/pairings/check.py. Ends when its standard input does.

Usage: serve.py FD FD, two listening sockets that it inherits: the first server asks for no token and has two session
slots, the second asks for TOKEN, has one slot, and answers its own faults with error frames.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

import uvicorn
from pydantic import SecretStr

from server.app import WS_MAX_BYTES, WS_PING_TIMEOUT_S, build_app
from server.evaluator import EvalResult
from server.mock_evaluator import MockEvaluator
from server.settings import Settings
from server.worker.protocol import Evaluate, Verdict

TOKEN = "pairing-token"
NEVER = "# the evaluation of this source does not end"
FAULT = "# the evaluation of this source meets a fault of ours"


class MarkedMock(MockEvaluator):
    """The mock, except for sources with one of the marks."""

    async def evaluate(self, request: Evaluate, deadline_s: float) -> EvalResult:
        """As the mark says, else as the mock."""
        if NEVER in request.code:
            await asyncio.Event().wait()
        if FAULT in request.code:
            return EvalResult(Verdict(request.eval_id, "compile", "infrastructure", infra_code="gpu_lost"))
        return await super().evaluate(request, deadline_s)


def main() -> None:
    """Serve both until the standard input ends."""
    settings = Settings(evaluator="mock", max_turns=4, max_sessions=2)
    guarded = {"token": SecretStr(TOKEN), "max_sessions": 1, "infra_failure": "error_frame"}
    serving: list[tuple[uvicorn.Server, threading.Thread]] = []
    for fd, changes in zip(sys.argv[1:], ({}, guarded), strict=True):
        app = build_app(settings.model_copy(update=changes), MarkedMock())
        config = uvicorn.Config(
            app, lifespan="on", log_level="warning", ws_max_size=WS_MAX_BYTES, ws_ping_timeout=WS_PING_TIMEOUT_S
        )
        server = uvicorn.Server(config)
        listening = socket.socket(fileno=int(fd))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        serving.append((server, thread))
    sys.stdin.read()
    for server, thread in serving:
        server.should_exit = True
        thread.join(60)


if __name__ == "__main__":
    main()
