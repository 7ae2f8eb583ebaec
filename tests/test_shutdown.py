"""The end of a real server process: SIGTERM during an evaluation leaves no process, torn log line or temporary file.

Servers here are children of this test, on the cpu evaluator, in temporary directories of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import WAIT_S

from kernel_env.client import KernelEnv
from kernel_env.errors import KernelEnvError
from kernel_env.models import KernelAction
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, alive, descendants, until
from tests.cpu_submissions import TASK, softmax

pytestmark = NEEDS_CPU_EVALUATOR

ROOT = Path(__file__).parent.parent
STOP_S = 120.0
"""The grace for running steps and the evaluator's own end; a server that ends well takes a second or two."""


@dataclass
class Server:
    """A server process and where it writes."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    temporary: Path

    def tree(self) -> list[int]:
        """The server and every process below it."""
        return [self.process.pid, *descendants(self.process.pid)]

    def lines(self) -> list[dict[str, object]]:
        """The log, which must be whole lines of JSON."""
        text = self.log.read_text()
        assert not text or text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def start(directory: Path) -> Iterator[Server]:
    """A server on the cpu evaluator; killed with all below it where a test did not end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    temporary, log = directory / "tmp", directory / "eval.jsonl"
    temporary.mkdir()
    temporary.chmod(0o755)  # candidates have another user
    environment = {
        **os.environ,
        "KERNEL_ENV_EVALUATOR": "cpu",
        "KERNEL_ENV_EVAL_LOG": str(log),
        "KERNEL_ENV_CACHE_DIR": str(directory / "cache"),
        "TMPDIR": str(temporary),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "server.app", "--host", "127.0.0.1", "--port", str(port)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=(directory / "stdout").open("wb"),
        stderr=(directory / "stderr").open("wb"),
    )
    server = Server(process, f"http://127.0.0.1:{port}", log, temporary)
    tree: list[int] = []
    try:
        yield server
    finally:
        tree = server.tree()
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def accepts(url: str) -> bool:
    """Whether somebody listens there."""
    host, port = url.removeprefix("http://").split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that every user may enter, which pytest's own are not."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="shutdown-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_sigterm_during_an_evaluation_ends_everything_and_keeps_the_log_whole(directory: Path) -> None:
    with start(directory) as server, ThreadPoolExecutor(1) as thread:
        until(lambda: accepts(server.url) or server.process.poll() is not None)
        env = KernelEnv(server.url).sync()
        env.reset(task_id=TASK, episode_id="last")
        endless = softmax(forward="while True:\n    pass")
        before = len(server.tree())
        step = thread.submit(env.step, KernelAction(code=endless))
        until(lambda: len(server.tree()) > before or step.done())
        assert not step.done(), step.result()
        tree = server.tree()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not accepts(server.url))
        assert server.process.wait(STOP_S) in (0, -signal.SIGTERM)
        with pytest.raises((KernelEnvError, ConnectionError)):
            step.result(WAIT_S)
        env.close()
        until(lambda: not [pid for pid in tree if alive(pid)])
        reset, cancelled = server.lines()
        assert (reset["event"], cancelled["event"]) == ("reset", "step")
        assert cancelled["infra_code"] == "cancelled"
        assert cancelled["reward"] is None
        assert cancelled["episode_id"] == "last"
        assert cancelled["eval_id"]
        assert (directory / "stdout").read_text() == server.log.read_text()
        assert list(server.temporary.glob("kernel_env-*")) == []  # torch keeps a cache beside them


def test_sigterm_while_it_starts_leaves_no_process(directory: Path) -> None:
    with start(directory) as server:
        until(lambda: len(server.tree()) > 1)
        tree = server.tree()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_S) in (0, -signal.SIGTERM)
        until(lambda: not [pid for pid in tree if alive(pid)])


def test_a_server_that_is_killed_takes_its_judge_along(directory: Path) -> None:
    with start(directory) as server:
        until(lambda: accepts(server.url) or server.process.poll() is not None)
        tree = server.tree()
        assert len(tree) >= 3  # the judge and its zygote
        server.process.kill()
        server.process.wait()
        until(lambda: not [pid for pid in tree if alive(pid)])
