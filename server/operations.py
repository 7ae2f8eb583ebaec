"""What an operator asks a server: /health, /ready, /status and /metrics, which say the same facts in different forms.

Touches the evaluator's bookkeeping only. Also says in the API's own description what OpenEnv's HTTP routes are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from server.auth import OPEN_PATH, is_trusted
from server.submission import Services
from server.tasks import BUILTIN_DIR
from server.version import VERSION

CAN_EVALUATE = frozenset({"idle", "busy"})
"""The states of a worker in which it has a judge."""

_STATELESS = (
    "Over HTTP every request has a session of its own, which ends with the answer: OpenEnv's HTTP routes keep no "
    "state. Episodes are played over the WebSocket at `/ws`, with `kernel_env.KernelEnv`. "
)
_DESCRIPTIONS = {
    "/reset": _STATELESS + "Here it hands out a task: useful to read problems.",
    "/step": _STATELESS + "A step never follows a reset here, so it is answered `not_reset` and nothing is judged.",
    "/state": _STATELESS + "Here it is always that of a session before its first reset.",
}


def identity(services: Services) -> dict[str, Any]:
    """What this server is: its evaluator, its devices, its sandbox and its tasks."""
    device = services.evaluator.device
    return {
        "version": VERSION,
        "evaluator": services.evaluator.name,
        "device": device.name if device is not None else None,
        "sandbox": device.sandbox if device is not None else None,
        "gpus": services.settings.gpus if services.evaluator.name == "gpu" else [],
        "tasks": {
            "source": "builtin" if services.tasks.root == BUILTIN_DIR else "kernelbench",
            "count": len(services.tasks.task_ids),
        },
    }


def facts(services: Services, open_sessions: Callable[[], int]) -> dict[str, Any]:
    """What this server is, whether it can evaluate, and how busy it is."""
    status = services.evaluator.status()
    reason = unready(status)
    return {
        **identity(services),
        **status,
        "ready": reason is None,
        "reason": reason,
        "out": out(status),
        "sessions": {"open": open_sessions(), "max": services.settings.max_sessions},
        "log_lines_dropped": services.log.dropped,
    }


def unready(status: dict[str, Any]) -> str | None:
    """Why nothing can be evaluated now, by an evaluator's status; None where something can.

    An evaluator without workers always can.
    """
    states = [worker["state"] for worker in status["workers"]]
    lacks = status.get("lacks", {})
    if states and not CAN_EVALUATE & set(states):
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        return " ".join([f"No worker can evaluate: {counts}.", *out(status)])
    if lacks and all(lacks.values()):
        return " ".join(["Nothing can be compiled.", *out(status)])
    return None


def out(status: dict[str, Any]) -> list[str]:
    """What is out after faults of ours, or for want of a compiler: a sentence for each."""
    return [
        f"Worker {worker['worker']}{_gpu(worker)} is down after {worker['faults_in_a_row']} faults in a row, the last "
        f"{worker['last_fault']}."
        for worker in status["workers"]
        if worker["state"] == "down" and worker.get("last_fault")
    ] + [
        f'Submissions in "{language}" cannot be compiled: {", ".join(missing)} not found.'
        for language, missing in status.get("lacks", {}).items()
        if missing
    ]


def _gpu(worker: dict[str, Any]) -> str:
    return f" (GPU {worker['gpu']})" if worker.get("gpu") is not None else ""


def add_routes(app: FastAPI, services: Services, open_sessions: Callable[[], int]) -> None:
    """Add the operator's routes to OpenEnv's app; /health replaces OpenEnv's own, which says nothing but its name.

    Those that ask the evaluator are plain functions, which run in threads: a lease's lock can be held for a moment.
    """
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != OPEN_PATH]
    for route in app.router.routes:
        if getattr(route, "path", None) in _DESCRIPTIONS and hasattr(route, "description"):
            route.description = _DESCRIPTIONS[route.path]  # type: ignore[attr-defined]
    services.metrics.watch(lambda: facts(services, open_sessions))

    @app.get(OPEN_PATH, tags=["Health"], summary="Whether the server answers (liveness), and what it is")
    async def health(request: Request) -> dict[str, Any]:
        return {"status": "healthy", **(identity(services) if is_trusted(request.scope) else {})}

    @app.get(
        "/ready",
        tags=["Health"],
        summary="Whether at least one worker can evaluate (readiness)",
        responses={503: {"description": "None can; `reason` says why."}},
    )
    def ready() -> JSONResponse:
        status = services.evaluator.status()
        reason = unready(status)
        content = {"ready": reason is None, "reason": reason, "out": out(status), **identity(services)}
        return JSONResponse(content, status_code=200 if reason is None else 503)

    @app.get("/status", tags=["Health"], summary="What this server evaluates with, and how busy it is")
    def status() -> dict[str, Any]:
        return facts(services, open_sessions)

    @app.get("/metrics", tags=["Health"], summary="The same for Prometheus, and what was answered so far")
    def metrics() -> Response:
        return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)
