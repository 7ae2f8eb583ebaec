"""Every HTTP route against its own description: what schemathesis makes of it, valid and not, on a real socket.

schemathesis is used as a library; its pytest plugin is switched off in pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import WAIT_S, make_settings, serve
from fuzzing import LONGEST_ANSWER, leaks, planted
from hypothesis import HealthCheck, given, settings

from server.app import build_app
from server.mock_evaluator import MockEvaluator

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.checks import CHECKS  # noqa: E402
from schemathesis.generation import GenerationMode  # noqa: E402

WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
# All routes but OpenEnv's of the WebSocket; 0.10 has more.
ROUTES = {"/reset", "/step", "/state", "/metadata", "/schema", "/mcp", "/health", "/ready", "/status", "/metrics"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a secret in its environment."""
    with planted(), serve(make_settings()) as served:
        yield served


@pytest.fixture(scope="module")
def description(url: str) -> Any:
    """What the server says of itself."""
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_every_route_is_described(description: Any) -> None:
    assert ROUTES <= {operation.ok().path for operation in description.get_all_operations()}


@pytest.mark.parametrize(
    ("route", "mode"),
    [(route, GenerationMode.POSITIVE) for route in sorted(ROUTES)]
    + [(route, GenerationMode.NEGATIVE) for route in ("/reset", "/step")],
    ids=lambda value: getattr(value, "value", value),
)
def test_routes_answer_as_described(description: Any, route: str, mode: Any) -> None:
    operations = [operation.ok() for operation in description.get_all_operations()]
    (operation,) = [operation for operation in operations if operation.path == route]
    statuses = set()

    @settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(timeout=WAIT_S)
        statuses.add(response.status_code)
        case.validate_response(response, checks=[CHECKS.get_one(name) for name in WANTED])
        assert not leaks(response.text)
        assert len(response.content) < LONGEST_ANSWER

    check()
    if route in ("/reset", "/step"):
        assert (200 if mode is GenerationMode.POSITIVE else 422) in statuses


def test_the_description_names_an_actions_fields_and_resets_arguments() -> None:
    schemas = build_app(make_settings(), MockEvaluator()).openapi()["components"]["schemas"]
    assert schemas["StepRequest"]["properties"]["action"]["properties"]["code"]["type"] == "string"
    assert {"seed", "task_id", "split", "language", "step_deadline_s"} <= set(schemas["ResetRequest"]["properties"])
