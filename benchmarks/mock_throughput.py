"""Steps per second of the server with its mock evaluator, beside those of a plain OpenEnv echo server in the same run.

Starts both as subprocesses and talks to them over WebSocket; touches no GPU, and of the files only its result. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import io
import json
import os
import platform
import pstats
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

Row = dict[str, Any]

RESULT_FILE = "mock_throughput.json"
LEAST_RATIO = 0.85
START_S = 60.0
ANSWER_S = 60.0
CONNECTING_AT_ONCE = 32
SETTLE_S = 0.5
# Turns of a session and sessions of a server: more than are used.
MANY = 10_000_000
# Replaced in each message, so that no two submissions are alike.
NUMBER = "0123456789"
KERNEL = f"# {NUMBER}\n" + (ROOT / "examples" / "level1" / "19_ReLU.py").read_text(encoding="utf-8")
# A kernel that nobody has sent before, the same kernel again and again, and a source without a model.
LOADS = {"kernel": KERNEL, "repeated": KERNEL.replace(NUMBER, "again"), "tiny": f"# {NUMBER}\n"}
SERVERS = ("echo", "mock")
# In every answer of the server: what it cannot say without having done the work.
PROOF = {
    ("echo", "kernel"): "def relu_kernel",
    ("echo", "repeated"): "def relu_kernel",
    ("echo", "tiny"): '"code":"#',
    ("mock", "kernel"): '"outcome":"scored"',
    ("mock", "repeated"): '"outcome":"scored"',
    ("mock", "tiny"): '"outcome":"missing_model"',
}


# ---------------------------------------------------------------- the servers


def serve_echo(port: int) -> None:
    """Serve the smallest OpenEnv environment there can be."""
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class EchoAction(Action):
        code: str

    class EchoObservation(Observation):
        code: str = ""

    class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
            return EchoObservation()

        def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:
            return EchoObservation(code=action.code, reward=0.0)

        @property
        def state(self) -> State:
            return State()

    app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=MANY)
    uvicorn.run(app, host="127.0.0.1", port=port)


def serve_mock(port: int, profile: Path | None) -> None:
    """Serve kernel_env as its own command does; with `profile`, write there where the time went."""
    from server import app, static_checks

    if profile is None:
        app.main(["--host", "127.0.0.1", "--port", str(port)])
        return
    check, lock, spent = static_checks.check, threading.Lock(), {"checks": 0, "cpu_s": 0.0}

    def timed_check(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return check(*args, **kwargs)
        finally:
            with lock:
                spent["checks"] += 1
                spent["cpu_s"] += time.thread_time() - began

    static_checks.check = timed_check
    # uvicorn ends by sending itself the signal that stopped it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    profiler = cProfile.Profile()
    profiler.enable()
    app.main(["--host", "127.0.0.1", "--port", str(port)])
    profiler.disable()
    text = io.StringIO()
    statistics_ = pstats.Stats(profiler, stream=text)
    statistics_.sort_stats("tottime").print_stats(40)
    statistics_.sort_stats("cumtime").print_stats(60)
    head = f"static checks, in other threads: {spent['checks']} in {spent['cpu_s']:.2f} s of CPU\n"
    profile.write_text(head + "this is the event loop's thread alone\n" + text.getvalue(), encoding="utf-8")


@dataclass(frozen=True)
class Server:
    """One that runs: its port and process."""

    port: int
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """Seconds of CPU it has used, all threads together."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(name: str, profile: Path | None = None) -> Iterator[Server]:
    """One of SERVERS in a process of its own, ended afterwards.

    Raises:
        RuntimeError: it did not start; the message has the end of what it said.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", name, "--port", str(port)]
    command += ["--profile", str(profile)] if profile is not None else []
    settings = {
        "KERNEL_ENV_EVALUATOR": "mock",
        "KERNEL_ENV_MAX_TURNS": str(MANY),
        "KERNEL_ENV_MAX_SESSIONS": str(MANY),
    }
    environment = os.environ | settings
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            while True:
                with contextlib.suppress(OSError), opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"the {name} server did not start:\n{log.read()[-3000:].decode()}")
                time.sleep(0.1)
            yield Server(port, process)
        finally:
            process.terminate()
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ---------------------------------------------------------------- the sessions


class Clock:
    """Counts steps while it is told to."""

    def __init__(self) -> None:
        self.steps = 0
        self.number = 0
        self.over = False


async def open_session(port: int, gate: asyncio.Semaphore) -> ClientConnection:
    """A session after its reset, with the options of kernel_env's client."""
    async with gate:
        session = await connect(
            f"ws://127.0.0.1:{port}/ws", open_timeout=ANSWER_S, ping_timeout=ANSWER_S, max_size=None, proxy=None
        )
        await session.send('{"type": "reset", "data": {}}')
        await asyncio.wait_for(session.recv(), ANSWER_S)
    return session


async def step_on(session: ClientConnection, message: str, proof: str, clock: Clock) -> None:
    """Step until the clock is over.

    Raises:
        RuntimeError: an answer is not what it must be.
    """
    while not clock.over:
        clock.number += 1
        await session.send(message.replace(NUMBER, f"{clock.number:010d}"))
        answer = await session.recv()
        if proof not in str(answer):
            raise RuntimeError(f"unexpected answer: {str(answer)[:500]}")
        clock.steps += 1


async def measure(server: Server, name: str, load: str, sessions: int, seconds: float) -> Row:
    """Steps per second of all sessions together, and the server's CPU time for a step.

    Raises:
        RuntimeError, WebSocketException, OSError: a session broke or an answer is not what it must be.
    """
    message = json.dumps({"type": "step", "data": {"code": LOADS[load]}})
    gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
    opened = await asyncio.gather(*(open_session(server.port, gate) for _ in range(sessions)))
    clock = Clock()
    try:
        tasks = [asyncio.create_task(step_on(session, message, PROOF[name, load], clock)) for session in opened]
        # The first answers wait for the server to have read a message of every session.
        while clock.steps < sessions and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        await asyncio.sleep(SETTLE_S)
        steps, cpu_s, began = clock.steps, server.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        steps, cpu_s, wall_s = clock.steps - steps, server.cpu_s() - cpu_s, time.monotonic() - began
        clock.over = True
        await asyncio.wait_for(asyncio.gather(*tasks), ANSWER_S)
    finally:
        await asyncio.gather(*(session.close() for session in opened), return_exceptions=True)
    return {
        "server": name,
        "load": load,
        "sessions": sessions,
        "steps": steps,
        "steps_per_s": round(steps / wall_s, 1),
        "server_cpu_ms_per_step": round(1e3 * cpu_s / steps, 4) if steps else None,
    }


# ---------------------------------------------------------------- the result


def machine() -> dict[str, Any]:
    """What the numbers were measured on. COMMIT names the commit where there is no git repository."""
    commit = os.environ.get("COMMIT")
    if not commit:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        commit = done.stdout.strip() or None
    versions = {name: metadata.version(name) for name in ("openenv-core", "uvicorn", "websockets", "fastapi")}
    return {"commit": commit, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), **versions}


def summary(rows: list[Row], counts: list[int]) -> list[Row]:
    """The medians of each load and session count, and the mock server's share of the echo server's rate."""
    found: list[Row] = []
    for load in LOADS:
        for sessions in counts:
            line: Row = {"load": load, "sessions": sessions}
            for name in SERVERS:
                mine = [row for row in rows if (row["server"], row["load"], row["sessions"]) == (name, load, sessions)]
                line[f"{name}_rounds"] = len(mine)
                if mine:
                    line[f"{name}_steps_per_s"] = round(statistics.median(row["steps_per_s"] for row in mine), 1)
                    cpu_ms = [row["server_cpu_ms_per_step"] for row in mine if row["server_cpu_ms_per_step"]]
                    line[f"{name}_cpu_ms"] = round(statistics.median(cpu_ms), 3) if cpu_ms else None
            if line.get("echo_steps_per_s") and "mock_steps_per_s" in line:
                line["ratio"] = round(line["mock_steps_per_s"] / line["echo_steps_per_s"], 3)
            found.append(line)
    return found


COLUMNS = ("echo_steps_per_s", "mock_steps_per_s", "ratio", "echo_cpu_ms", "mock_cpu_ms")


def report(lines: list[Row]) -> int:
    """Print the table; 0 only if every load and session count was measured and is within the bound."""
    titles = ("echo/s", "mock/s", "ratio", "echo CPU ms", "mock CPU ms")
    print(f"\n     {'load':9} {'sessions':>8} {''.join(f'{title:>12}' for title in titles)}")
    good = [line.get("ratio", 0.0) >= LEAST_RATIO for line in lines]
    for line, ok in zip(lines, good, strict=True):
        cells = "".join(f"{line.get(name) or '':>12}" for name in COLUMNS)
        print(f"{'PASS' if ok else 'FAIL'} {line['load']:9} {line['sessions']:8} {cells}")
    print(f"PASS is at least {LEAST_RATIO} of the echo server's steps a second")
    return 0 if all(good) else 1


def compare(out: Path, counts: list[int], rounds: int, seconds: float, budget_s: float) -> int:
    """Measure both servers in turn, writing the result after each measurement; the exit code."""
    rows: list[Row] = []
    result: dict[str, Any] = {"machine": machine(), "seconds": seconds, "measurements": rows}
    end = time.monotonic() + budget_s

    def write() -> None:
        result["summary"] = summary(rows, counts)
        partial = out / f"{RESULT_FILE}.partial"
        partial.write_text(json.dumps(result, indent=1) + "\n")
        partial.replace(out / RESULT_FILE)

    with running("echo") as echo, running("mock") as mock:
        servers = {"echo": echo, "mock": mock}
        plan = [(number, load, sessions) for number in range(rounds) for load in LOADS for sessions in counts]
        for number, load, sessions in plan:
            # Whoever goes first in one round goes second in the next.
            for name in SERVERS if number % 2 == 0 else SERVERS[::-1]:
                if time.monotonic() > end:
                    print(f"stopped after {budget_s:.0f} s", flush=True)
                    return report(result["summary"])
                try:
                    row = asyncio.run(measure(servers[name], name, load, sessions, seconds))
                except (RuntimeError, WebSocketException, OSError, TimeoutError) as error:
                    print(f"FAIL {name} {load} {sessions}: {error!r}", flush=True)
                    continue
                rows.append(row | {"round": number})
                write()
                print(f"{number} {name} {load:9} {sessions:5} sessions: {row['steps_per_s']:8.1f} steps/s", flush=True)
    write()
    return report(result["summary"])


def main() -> int:
    """Compare the two; or profile the mock server; or be one of the servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help=f"directory for {RESULT_FILE}")
    parser.add_argument("--sessions", default="1,64,1000", metavar="N,N", help="how many at a time")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each; the median counts")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--budget-s", type=float, default=500.0, help="start no measurement after this")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="profile the mock server at the last of --sessions"
    )
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # A time limit from outside must still end the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.serve == "echo":
        serve_echo(arguments.port)
        return 0
    if arguments.serve == "mock":
        serve_mock(arguments.port, arguments.profile)
        return 0
    counts = [int(count) for count in arguments.sessions.split(",")]
    if arguments.profile is not None:
        with running("mock", arguments.profile.resolve()) as server:
            row = asyncio.run(measure(server, "mock", "kernel", counts[-1], arguments.seconds))
        print(arguments.profile.read_text(encoding="utf-8"))
        print(f"{row['steps']} steps, {row['steps_per_s']} a second")
        return 0
    if arguments.out is None:
        parser.error("--out is required")
    arguments.out.mkdir(parents=True, exist_ok=True)
    return compare(arguments.out, counts, arguments.rounds, arguments.seconds, arguments.budget_s)


if __name__ == "__main__":
    sys.exit(main())
