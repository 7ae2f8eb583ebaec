"""The service: OpenEnv's app around KernelEnvironment, and the `server` command.

Touches the network through uvicorn, and starts and stops the evaluator that all sessions share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from inspect import signature
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_app
from pydantic import ConfigDict, ValidationError
from uvicorn.config import LOGGING_CONFIG

from kernel_env.models import MAX_MESSAGE_BYTES, KernelAction, KernelObservation, KernelState
from server import descriptors
from server.auth import AuthMiddleware
from server.disconnect import DisconnectMiddleware
from server.environment import KernelEnvironment, Refused
from server.errors import ConfigurationError, TaskSourceError
from server.eval_log import EvalLog
from server.evaluator import Evaluator, EvaluatorUnavailable, check_reward, create_evaluator
from server.limits import LimitMiddleware, short_errors
from server.operations import add_routes
from server.reset_args import LANGUAGES, MAX_STEP_DEADLINE_S
from server.settings import Settings, explain, get_settings
from server.submission import Services
from server.tasks import TaskSource
from server.text import bound

# A client whose own event loop is busy, or a tunnel that drops pings, must not lose its session.
WS_PING_TIMEOUT_S = 300.0
WS_MAX_BYTES = MAX_MESSAGE_BYTES
SHUTDOWN_GRACE_S = 30
EXIT_CANNOT_START = 2
_REFUSED_BODIES = {"400": {"description": "The body is not UTF-8"}, "413": {"description": "The body is too large"}}
_RESET_PROPERTIES: dict[str, Any] = {
    "task_id": {"type": ["string", "null"], "description": "Such as level1/19_ReLU; wins over the seed"},
    "split": {"enum": ["train", "eval", None]},
    "language": {"enum": [*LANGUAGES, None]},
    "step_deadline_s": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_STEP_DEADLINE_S},
}


class WireAction(KernelAction):
    """KernelAction as it arrives: a lone surrogate in the code becomes U+FFFD, because it would end the session."""

    model_config = ConfigDict(title="KernelAction")

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Self:
        """As pydantic's, after replacing surrogates in `code`."""
        if isinstance(obj, dict) and isinstance(obj.get("code"), str):
            code = obj["code"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            obj = {**obj, "code": code}
        return super().model_validate(obj, **kwargs)


def build_app(settings: Settings, evaluator: Evaluator | None = None) -> FastAPI:
    """The whole service, its evaluator started. The app's lifespan ends the evaluator.

    Args:
        settings: the server's settings.
        evaluator: one to use instead of the one that the settings name; not started yet.

    Raises:
        EvaluatorUnavailable: the evaluator cannot run here.
        ConfigurationError: the roofline reward on a device without a known roofline, or an unusable log file.
        TaskSourceError: there are no usable tasks.
    """
    if evaluator is None:
        evaluator = create_evaluator(settings)
    tasks = TaskSource.open(settings, evaluator.name)
    try:
        log = EvalLog(settings.eval_log, max_bytes=int(settings.eval_log_max_mb * 2**20))
    except OSError as exc:
        message = f"KERNEL_ENV_EVAL_LOG: {settings.eval_log} cannot be opened: {exc.strerror or exc}"
        raise ConfigurationError(message) from exc
    services = Services(settings, evaluator, tasks, log)
    try:
        evaluator.start()
        _announce(evaluator)
        check_reward(settings, evaluator.device)
        return _assemble(services)
    except BaseException:
        evaluator.close()
        log.close()
        raise


class _Sessions:
    """The environments that OpenEnv made, as long as they live. They are made and counted on several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[KernelEnvironment] = weakref.WeakSet()

    def add(self, session: KernelEnvironment) -> None:
        with self._lock:
            self._all.add(session)

    def count_open(self) -> int:
        with self._lock:
            return sum(not session.closed for session in self._all)


def _assemble(services: Services) -> FastAPI:
    sessions = _Sessions()

    def kernel_environment() -> KernelEnvironment:
        environment = KernelEnvironment(services)
        sessions.add(environment)
        return environment

    # openenv 0.10 publishes the state's own fields; 0.3.0 has no such argument.
    newer: dict[str, Any] = {"state_cls": KernelState} if "state_cls" in signature(create_app).parameters else {}
    app = create_app(
        kernel_environment,
        WireAction,
        KernelObservation,
        env_name="kernel_env",
        max_concurrent_envs=services.settings.max_sessions,
        **newer,
    )
    _replace_mcp(app)
    _describe(app)
    app.add_middleware(LimitMiddleware)
    app.add_middleware(DisconnectMiddleware)
    if services.settings.token is not None:
        app.add_middleware(AuthMiddleware, token=services.settings.token)
    add_routes(app, services, sessions.count_open)

    @app.exception_handler(Refused)
    async def refused(request: Request, exc: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(exc)}, status_code=422)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, exc: Exception) -> JSONResponse:
        assert isinstance(exc, RequestValidationError)
        return JSONResponse({"detail": jsonable_encoder(short_errors(list(exc.errors())))}, status_code=422)

    @app.exception_handler(HTTPException)
    async def failed(request: Request, exc: Exception) -> JSONResponse:
        assert isinstance(exc, HTTPException)
        detail: Any = exc.detail  # OpenEnv puts pydantic's list of errors there
        if isinstance(detail, list):
            detail = jsonable_encoder(short_errors(detail))
        return JSONResponse({"detail": detail}, status_code=exc.status_code, headers=exc.headers)

    openenv_lifespan = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(scope_app: Any) -> AsyncIterator[Any]:
        async with openenv_lifespan(scope_app) as state:
            try:
                yield state
            finally:
                try:
                    await asyncio.to_thread(services.evaluator.close)
                finally:
                    services.log.close()

    app.router.lifespan_context = lifespan
    return app


def _replace_mcp(app: FastAPI) -> None:
    """Drop OpenEnv's MCP routes: there are no MCP tools here, and one of its methods takes a session slot for good.

    The answer that is left is what `openenv validate --url` looks for.
    """
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != "/mcp"]

    @app.post("/mcp", tags=["Environment Info"], summary="There are no MCP tools: always a JSON-RPC error")
    async def no_mcp() -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "This server has no MCP tools."}}


def _describe(app: FastAPI) -> None:
    """Say in the API's own description what OpenEnv leaves open: an action's fields, what reset takes, refusals."""
    generate = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()  # FastAPI keeps it, and hands out the same one from now on
            schema["paths"]["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {}}
            for path in ("/reset", "/step"):
                schema["paths"][path]["post"]["responses"] |= _REFUSED_BODIES
            schemas = schema["components"]["schemas"]
            schemas["StepRequest"]["properties"]["action"] = KernelAction.model_json_schema()
            schemas["ResetRequest"]["properties"] |= _RESET_PROPERTIES
            schemas["ResetRequest"]["additionalProperties"] = False
            detail = schemas["HTTPValidationError"]["properties"]["detail"]
            schemas["HTTPValidationError"]["properties"]["detail"] = {"anyOf": [detail, {"type": "string"}]}
        return generate()

    setattr(app, "openapi", described)  # noqa: B010


def _announce(evaluator: Evaluator) -> None:
    """One line on stderr; stdout is for resets and steps."""
    device = evaluator.device
    where = f" on {device.name}, sandbox {device.sandbox}" if device is not None and device.kind != "mock" else ""
    print(f"kernel_env: evaluator {evaluator.name}{where}", file=sys.stderr, flush=True)


def _build_or_exit() -> FastAPI:
    """The app by the process's settings; a reason not to start is one line on stderr and exit code 2."""
    try:
        return build_app(get_settings())
    except ValidationError as exc:
        reason = f"invalid settings: {explain(exc)}"
    except (EvaluatorUnavailable, ConfigurationError, TaskSourceError, OSError) as exc:
        reason = str(exc)
    print(f"kernel_env: {' '.join(bound(reason).split())}", file=sys.stderr, flush=True)
    raise SystemExit(EXIT_CANNOT_START)


def __getattr__(name: str) -> Any:
    # For `uvicorn server.app:app`. Built on demand: importing this module must not start an evaluator.
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = _build_or_exit()
    globals()["app"] = app
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted. Settings come from the environment; see the README's table."""
    parser = argparse.ArgumentParser(prog="server", description="Serve kernel_env over OpenEnv's protocol.")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: every one)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    arguments = parser.parse_args(argv)
    descriptors.prepare()
    app = _build_or_exit()
    # Standard output is for the evaluation log alone.
    log_config = copy.deepcopy(LOGGING_CONFIG)
    log_config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        log_config=log_config,
        ws_ping_timeout=WS_PING_TIMEOUT_S,
        ws_max_size=WS_MAX_BYTES,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )


if __name__ == "__main__":
    main()
