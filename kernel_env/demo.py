"""`kernel-env demo`: a server in a child process, and one episode with it through the real client.

Touches a local port, a child process group that it always ends, and temporary files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from kernel_env import demo_kernels
from kernel_env.cli import describe

TASK_ID = "level1/23_Softmax"
START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 40.0
POLL_S = 0.2
EXIT_CANNOT_START = 2
EXIT_FAULT = 3


def play(evaluator: str) -> int:
    """Play the episode and print it; returns the exit code."""
    from kernel_env.client import KernelEnv
    from kernel_env.models import KernelAction

    # Nothing runs in mock mode, so only the parser can call a kernel wrong there.
    wrong = demo_kernels.TORCH_FALLBACK if evaluator == "mock" else demo_kernels.WRONG
    turns = [("a wrong kernel", wrong), ("a slow kernel", demo_kernels.SLOW), ("a good kernel", demo_kernels.GOOD)]
    print(f"Starting a server with the {evaluator} evaluator ...", flush=True)
    with _server(evaluator, max_turns=len(turns)) as url:
        if url is None:
            return EXIT_CANNOT_START
        if evaluator == "mock":
            print("MOCK: nothing is compiled or run, and every time below is made up. Only the static checks are real.")
        faults = 0
        with KernelEnv(base_url=url).sync() as env:
            problem = env.reset(task_id=TASK_ID).observation.problem
            print(f"\nreset     task {TASK_ID}; the problem text is {len(problem)} characters and begins:")
            print("\n".join(f"          {line}" for line in problem.splitlines()[:3]))
            for number, (name, code) in enumerate(turns, 1):
                result = env.step(KernelAction(code=code))
                print(f"\nturn {number}    {name}\n{describe(result.observation)}", flush=True)
                faults += result.reward is None
            state = env.state()
        best = "none" if state.best_reward is None else f"{state.best_reward:.3f}"
        print(f"\nThe episode is {'over' if state.done else 'not over'}: {state.turn} turns, best reward {best}.")
        if evaluator == "mock":
            print("With torch and Triton installed, `kernel-env demo --evaluator cpu` runs and judges these for real.")
        return EXIT_FAULT if faults else 0


@contextlib.contextmanager
def _server(evaluator: str, max_turns: int) -> Iterator[str | None]:
    """A server's URL once it answers, None when it did not start (the reason is on stderr). Ends it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "server.app", "--host", "127.0.0.1", "--port", str(port)],
            cwd=Path(__file__).resolve().parents[1],  # where `server` is too, installed or not
            env=_environment(evaluator, max_turns),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            ready = _wait_until_healthy(process, url)
            if not ready:
                output.seek(0)
                tail = output.read()[-4000:].decode(errors="replace").strip() or "it said nothing"
                print(f"The server did not start:\n{tail}", file=sys.stderr)
            yield url if ready else None
        finally:
            _end(process)


def _environment(evaluator: str, max_turns: int) -> dict[str, str]:
    """The server's environment variables: the built-in tasks, also where the image's KernelBench is."""
    from server.tasks import BUILTIN_DIR

    ignored = ("KERNELBENCH_DIR", "KERNEL_ENV_EVAL_LOG", "KERNEL_ENV_REWARD", "ENABLE_WEB_INTERFACE")
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    if evaluator != "cpu":  # which has their small variants where the variable is not set
        environment["KERNELBENCH_DIR"] = str(BUILTIN_DIR)
    return environment | {"KERNEL_ENV_EVALUATOR": evaluator, "KERNEL_ENV_MAX_TURNS": str(max_turns)}


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> bool:
    """True once GET /health answers; False if the process ended first or the deadline passed."""
    # The environment's proxies are not for an address on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(f"{url}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop, so that it ends its workers; then end its whole process group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_DEADLINE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
