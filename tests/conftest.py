"""Fixtures shared by the tests of the server, the client and the command line. Imports openenv only when asked to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from server.evaluator import EvalResult, Evaluator
from server.mock_evaluator import MockEvaluator
from server.settings import Settings
from server.worker.protocol import DeviceInfo, Evaluate

if TYPE_CHECKING:
    from kernel_env.client import KernelEnv

TABLE = "a row of the table "
"""A test's property of this name and a table's is the row (what came of it, text) that is printed at the end."""

WAIT_S = 60.0
"""How long a test waits for something that must happen; only a failing test takes as long."""

LONGEST_FIRST = (
    "test_faults_matrix.py",
    "test_soak.py",
    "test_pool.py",
    "test_attacks.py",
    "test_pool_sharing.py",
    "test_honest.py",
    "test_sandbox_limits.py",
    "test_sandbox_reach.py",
    "test_sandbox.py",
    "test_cpu_tasks.py",
)
"""Files that take a minute or more. Begun last, one of them would run alone at the end, beside idle processes."""


@dataclass
class ScriptedEvaluator:
    """An evaluator whose answer is the test's function; it records what was asked and what was cancelled."""

    answer: Callable[[Evaluate], Awaitable[EvalResult]]
    name: str = "mock"
    device: DeviceInfo | None = None
    requests: list[Evaluate] = field(default_factory=list)
    deadlines_s: list[float] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Nothing to start."""

    async def evaluate(self, request: Evaluate, deadline_s: float) -> EvalResult:
        """The script's answer."""
        self.requests.append(request)
        self.deadlines_s.append(deadline_s)
        self.entered.set()
        try:
            return await self.answer(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def status(self) -> dict[str, Any]:
        """As an evaluator without workers."""
        return {"evaluator": self.name, "workers": [], "queue_depth": 0}

    def close(self) -> None:
        """Recorded."""
        self.closed.set()


async def never(request: Evaluate) -> EvalResult:
    """A script for an evaluation that does not end by itself."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def as_mock(request: Evaluate) -> EvalResult:
    """A script that answers as the mock evaluator does."""
    return await MockEvaluator().evaluate(request, 1.0)


def make_settings(**values: Any) -> Settings:
    """Settings for a test: the built-in tasks and the mock evaluator, unless told otherwise."""
    return Settings().model_copy(
        update={"kernelbench_dir": None, "evaluator": "mock", "reward": "speedup", "eval_log": None, **values}
    )


@contextlib.contextmanager
def serve(settings: Settings, evaluator: Evaluator | None = None, **options: Any) -> Iterator[str]:
    """The real app behind uvicorn, on a thread and a free port; yields its URL. `options` are uvicorn's."""
    import uvicorn

    from server.app import WS_MAX_BYTES, WS_PING_TIMEOUT_S, build_app

    app = build_app(settings, evaluator)
    options = {"ws_max_size": WS_MAX_BYTES, "ws_ping_timeout": WS_PING_TIMEOUT_S, **options}
    config = uvicorn.Config(app, lifespan="on", log_level="warning", **options)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # connections wait in its backlog until uvicorn is up
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive(), "the server did not stop"


async def connect_when_free(url: str) -> KernelEnv:
    """A session, as soon as the server has a slot; gives up after WAIT_S."""
    from kernel_env.client import KernelEnv
    from kernel_env.errors import CapacityReached

    deadline = time.monotonic() + WAIT_S
    while True:
        client = KernelEnv(url)
        try:
            await client.connect()
            return client
        except CapacityReached:
            if time.monotonic() > deadline:
                raise


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings and proxy keys must not change what a test sees."""
    import os

    from server.settings import get_settings

    for name in list(os.environ):
        if name.startswith(("KERNEL_ENV_", "MODAL_PROXY_")) or name in ("KERNELBENCH_DIR", "ENABLE_WEB_INTERFACE"):
            monkeypatch.delenv(name)
    get_settings.cache_clear()


@pytest.fixture(scope="module")
def log_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `mock_server` logs."""
    return tmp_path_factory.mktemp("log") / "eval.jsonl"


@pytest.fixture(scope="module")
def mock_server(log_path: Path) -> Iterator[str]:
    """One server for a module: mock evaluator, built-in tasks, two turns an episode."""
    with serve(make_settings(max_turns=2, max_sessions=16, eval_log=log_path)) as url:
        yield url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; a process that is free takes the next file."""
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables with their counts. Properties come back from the processes that ran the tests."""
    tables: dict[str, list[tuple[str, str]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, row in getattr(report, "user_properties", ()):
                if getattr(report, "when", None) == "call" and name.startswith(TABLE):
                    tables.setdefault(name.removeprefix(TABLE), []).append(row)
    for name, rows in tables.items():
        counts = ", ".join(f"{count} {what}" for what, count in sorted(Counter(what for what, _ in rows).items()))
        terminalreporter.section(name)
        terminalreporter.write("\n".join([*sorted(text for _, text in rows), f"{len(rows)} {name}: {counts}\n"]))
