"""The four pairings of client and server, and OpenEnv's own commands. Standard library; run by scripts/pairings.sh.

Usage: run.py PROJECT NAME=PYTHON NAME=PYTHON: a copy of the project, and for each distribution of OpenEnv the
interpreter of an environment with that distribution and this package.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Raises CalledProcessError when a client or a command fails."""
    project = sys.argv[1]
    pythons = dict(argument.split("=", 1) for argument in sys.argv[2:])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KERNEL_ENV_", "MODAL_"))}
    urls: dict[str, list[str]] = {}
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for name, python in pythons.items():
            # Listening before the server runs: its clients wait in the backlog, and no port is taken in between.
            listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
            fds = [item.fileno() for item in listening]
            command = [python, str(HERE / "serve.py"), *map(str, fds)]
            servers.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=fds, env=environment, cwd="/"
                )
            )
            urls[name] = [f"http://127.0.0.1:{item.getsockname()[1]}" for item in listening]
            for item in listening:
                item.close()
        for name, python in pythons.items():
            print(f"client {name}", flush=True)
            check = [python, str(HERE / "check.py"), project, json.dumps(urls)]
            subprocess.run(check, env=environment, cwd="/", check=True)
    finally:
        for server in servers:
            server.communicate()  # ends its standard input
    if any(server.returncode for server in servers):
        raise SystemExit(f"a server ended with an error: {[server.returncode for server in servers]}")


if __name__ == "__main__":
    main()
