"""Runs `python -m server.app` as a subprocess until it is no longer needed. Touches processes and one log file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SERVER_START_S = 120.0
SERVER_STOP_S = 20.0


def _processes() -> dict[int, tuple[int, str]]:
    """Of every process its parent and its start time, which tells it from a later one with the same id. Linux only."""
    found: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = (int(fields[1]), fields[19])
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop, then end its process group and whatever it had started in other groups."""
    before = _processes()
    below = {process.pid}
    while grown := {pid for pid, (parent, _) in before.items() if parent in below} - below:
        below |= grown
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SERVER_STOP_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    after = _processes()
    for pid in below - {process.pid}:
        if pid in after and after[pid][1] == before[pid][1]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _get(url: str) -> dict[str, Any] | None:
    # The environment's proxies are not for an address on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as response:
            return json.load(response)
    except (urllib.error.URLError, OSError, ValueError):
        return None


@contextlib.contextmanager
def server(settings: dict[str, str], log: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A running server: its URL and what its /status said once it was ready. Ends it and its children afterwards.

    Args:
        settings: environment variables on top of this process's own.
        log: where its output is appended.

    Raises:
        RuntimeError: it ended or stayed silent; the message has the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server.app", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + SERVER_START_S
            status = None
            while status is None and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
                status = _get(f"{url}/status") if _get(f"{url}/health") is not None else None
            if status is None:
                tail = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the server did not start within {SERVER_START_S:.0f} s:\n{tail}")
            yield url, status
        finally:
            _end(process)
