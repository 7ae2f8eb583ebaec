"""OpenEnv's own commands on a copy of the project: validate as far as it goes, build up to Docker, push up to the Hub.

Imported by tests/pairings/check.py. Docker and the Hub are replaced by what notes what it was asked to do.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openenv.cli.__main__ import app
from openenv.cli.commands import push
from typer.testing import CliRunner

# Notes its arguments, and which of the Dockerfile's COPY sources the build context lacks.
DOCKER = """#!/usr/bin/env python3
import json, os, pathlib, re, sys
context, dockerfile = sys.argv[-1], sys.argv[sys.argv.index("-f") + 1]
copied = [path for line in re.findall(r"^COPY (.+) ", open(dockerfile).read(), re.MULTILINE) for path in line.split()]
lacking = [path for path in copied if not pathlib.Path(context, path).exists()]
hidden = pathlib.Path(context, ".dockerignore").read_text().split()
note = {"arguments": sys.argv[1:], "copied": copied, "lacking": lacking, "hidden": hidden}
pathlib.Path(os.environ["DOCKER_NOTE"]).write_text(json.dumps(note))
"""


def openenv(*arguments: str) -> str:
    """The output of one of OpenEnv's commands, which must succeed."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"openenv {' '.join(arguments)}: exit code {result.exit_code}\n{result.output}"
    return result.output


@contextlib.contextmanager
def inside(directory: Path) -> Iterator[None]:
    """The working directory, for a while."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def validate(project: Path, servers: Sequence[str]) -> None:
    """The project's files, then running servers."""
    if importlib.util.find_spec("openenv.validation") is None:  # 0.3.0 has one level, for all modes of deployment
        output = openenv("validate", "-v")
        assert output.count("[YES]") == 4 and "[NO]" not in output, output
    else:
        assert "Verdict: PASS" in openenv("validate", "--level", "static")
        # Without a level it goes as far as it can: here to what needs Docker and a GPU.
        output = openenv("validate")
        assert "missing provider capability: gpu" in output and "Verdict: WARN" in output, output
        validation: Any = importlib.import_module("openenv.validation")
        running = AlreadyRunning(servers[0], validation.types.ProviderCapability)
        report = validation.run_validation(project, max_level=validation.Level.RUNTIME, provider=running)
        results = {result.check_id: (result.status.value, result.evidence) for result in report.results}
        for name in ("startup", "reward_well_formed", "observation_schema", "state_contract"):
            assert results[f"runtime.{name}"][0] == "pass", results
        assert not [name for name, (status, _) in results.items() if status in ("fail", "error")], results
    for url in servers:
        openenv("validate", "--url", url)


class AlreadyRunning:
    """A provider for OpenEnv's runtime level that builds nothing: its container is a server that is up."""

    name = "already-running"
    supported_network_modes = frozenset({"public"})

    def __init__(self, base_url: str, capability: Any) -> None:
        self.base_url = base_url
        self.capabilities = frozenset({capability.IMAGE_BUILD, capability.GPU})

    def build(self, root: Path, execution: Any) -> str:
        """Only checks that the Dockerfile named in the manifest is there."""
        assert (root / execution.dockerfile).is_file()
        return "sha256:" + "0" * 64

    def start(self, spec: Any) -> AlreadyRunning:
        """The server that is up."""
        return self

    def inspect(self) -> dict[str, Any]:
        """Nothing to say."""
        return {}

    def stop(self) -> None:
        """The server goes on."""


def build(project: Path) -> None:
    """Up to Docker, whose context must hold what the Dockerfile copies."""
    with tempfile.TemporaryDirectory() as directory:
        docker, note = Path(directory, "docker"), Path(directory, "note.json")
        docker.write_text(DOCKER)
        docker.chmod(0o755)
        environment = {"PATH": f"{directory}:{os.environ['PATH']}", "DOCKER_NOTE": str(note)}
        result = CliRunner().invoke(app, ["build"], env=environment)
        assert result.exit_code == 0 and note.exists(), result.output
        noted = json.loads(note.read_text())
    assert noted["arguments"][:3] == ["build", "-t", "openenv-kernel"], noted
    assert len(noted["copied"]) >= 3 and not noted["lacking"], noted
    assert {"benchmarks", "examples", "tests"} <= set(noted["hidden"]), noted


def push_to_a_space(project: Path) -> None:
    """Up to the Hub, to which the whole of what a Space builds must go; what the image copies holds no solutions."""
    uploaded: set[str] = set()
    dockerfiles: list[str] = []

    class Hub:
        def create_repo(self, **arguments: Any) -> None:
            assert arguments["repo_id"] == "someone/kernel_env" and arguments["space_sdk"] == "docker"

        def upload_folder(self, *, folder_path: str, **arguments: Any) -> None:
            root = Path(folder_path)
            uploaded.update(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
            dockerfiles.append((root / "Dockerfile").read_text())

    module: Any = push
    hub = SimpleNamespace(HfApi=module.HfApi, whoami=module.whoami)
    module.HfApi, module.whoami = Hub, lambda: {"name": "someone"}
    try:
        openenv("push")
    finally:
        module.HfApi, module.whoami = hub.HfApi, hub.whoami
    copied = [path for line in re.findall(r"^COPY (.+) ", dockerfiles[0], re.MULTILINE) for path in line.split()]
    for path in copied:
        assert any(name == path or name.startswith(f"{path}/") for name in uploaded), path
    needed = {"README.md", "openenv.yaml", "pyproject.toml", "server/app.py", "kernel_env/client.py"}
    assert needed | {"server/builtin_tasks/level1/19_ReLU.py", "server/splits.json"} <= uploaded
    assert not {".", "benchmarks", "examples", "tests"} & set(copied)


def check_commands(project: Path, servers: Sequence[str]) -> None:
    """All of them."""
    with inside(project):
        validate(project, servers)
        build(project)
        push_to_a_space(project)
