"""The files that ship the project agree with the code and with each other. Touches files only; modal is not needed."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from kernel_env.models import InfraCode, KernelObservation, Outcome, Stage
from server.app import WS_MAX_BYTES, WS_PING_TIMEOUT_S
from server.rewards import CORRECT, MAX_LOG2_SPEEDUP
from server.settings import IMAGE_KERNELBENCH_DIR, Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VARIABLE = re.compile(r"\b(?:KERNEL_ENV_[A-Z_]*[A-Z]|KERNELBENCH_DIR|MODAL_PROXY_[A-Z]+)\b")


def section(title: str) -> str:
    """The README's text under a heading, up to the next heading."""
    match = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"the README has no heading {title!r}"
    return match[1]


def table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def variable_of(field: str) -> str:
    alias = Settings.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else f"KERNEL_ENV_{field.upper()}"


def shown(default: Any) -> str:
    """A default as one would write it in the variable."""
    if isinstance(default, list):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


# ---------------------------------------------------------------- README


def test_readme_lists_every_server_variable_with_its_default():
    server_table = section("Environment variables").split("Of the client")[0]
    listed = {row[0].strip("`"): row[1] for row in table_rows(server_table)}
    assert listed.keys() == {variable_of(field) for field in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        cell = listed[variable_of(name)]
        if name == "kernelbench_dir":
            assert cell.startswith(f"`{IMAGE_KERNELBENCH_DIR}`")
        elif field.default is None:
            assert cell == "unset"
        else:
            assert cell == f"`{shown(field.default)}`", name


def test_readme_lists_every_variable_that_the_client_and_the_deployment_read():
    sources = [ROOT / "modal_app.py", *(ROOT / "kernel_env").rglob("*.py")]
    read = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    assert {"MODAL_PROXY_KEY", "KERNEL_ENV_MODAL_GPU"} <= read
    assert read <= set(VARIABLE.findall(section("Environment variables")))


def test_readme_lists_every_observation_field():
    listed = [name for row in table_rows(section("Observation")) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(KernelObservation.model_fields)


def test_readme_lists_every_stage_outcome_and_infrastructure_code():
    named = set(re.findall(r"`(\w+)`", section("Stages and outcomes")))
    values = {member.value for enum in (Stage, Outcome, InfraCode) for member in enum}
    assert values <= named


def test_readme_front_matter_is_a_spaces():
    front = yaml.safe_load(README.split("---\n")[1])
    port = yaml.safe_load((ROOT / "openenv.yaml").read_text(encoding="utf-8"))["port"]
    assert front == {"title": "Kernel Env", "emoji": "⚡", "sdk": "docker", "app_port": port, "tags": ["openenv"]}


def test_readme_shows_only_extras_that_exist():
    extras = set(re.findall(r"--extra (\w+)", README)) | set(re.findall(r"\.\[(\w+)\]", README))
    assert extras and extras <= PYPROJECT["project"]["optional-dependencies"].keys()


# ---------------------------------------------------------------- OpenEnv and Docker


def test_openenv_manifest_agrees_with_the_package():
    manifest = yaml.safe_load((ROOT / "openenv.yaml").read_text(encoding="utf-8"))
    assert manifest["spec_version"] == 1
    assert manifest["name"] == "kernel_env"
    assert manifest["version"] == PYPROJECT["project"]["version"]
    assert manifest["app"] == "server.app:app"
    assert PYPROJECT["project"]["scripts"]["server"] == "server.app:main"
    assert manifest["validation"]["reward"]["range"] == [0.0, CORRECT + MAX_LOG2_SPEEDUP]


def test_both_dockerfiles_are_the_same_real_file():
    first, second = ROOT / "Dockerfile", ROOT / "server" / "Dockerfile"
    assert not first.is_symlink() and not second.is_symlink()
    assert first.read_bytes() == second.read_bytes()


def test_dockerfile_runs_steps_that_exist_and_starts_as_the_server_expects():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    script = (ROOT / "scripts" / "image_steps.sh").read_text(encoding="utf-8")
    steps = [
        step
        for line in re.findall(r"^RUN bash scripts/image_steps\.sh (.+)$", text, re.MULTILINE)
        for step in line.split()
    ]
    assert steps == ["venv", "torch", "deps", "kernelbench", "app", "check"]
    assert all(f"step_{step}() {{" in script for step in steps)
    environment = dict(re.findall(r"(\w+)=(\S+)", text))
    assert float(environment["UVICORN_WS_PING_TIMEOUT"]) == WS_PING_TIMEOUT_S
    assert int(environment["UVICORN_WS_MAX_SIZE"]) == WS_MAX_BYTES
    assert re.search(r"^FROM nvidia/cuda:[\d.]+-devel-\S+$", text, re.MULTILINE)
    assert not re.search(r"^USER ", text, re.MULTILINE)


def test_image_holds_no_solutions_that_a_submission_could_read():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {"benchmarks", "examples", "tests"} <= set(ignored)


# ---------------------------------------------------------------- locks


def pins(path: Path) -> dict[str, set[str]]:
    """Name -> pinned versions (several where they depend on the Python version)."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("path", ["requirements.lock", "scripts/torch.lock"])
def test_locks_have_hashes_and_no_addresses(path: str):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not re.search(r"https?:|file:|--(?:index|extra|find)", text)
    requirements = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(requirements) > 10
    assert all("==" in requirement and "--hash=sha256:" in requirement for requirement in requirements)


def test_locks_cover_what_the_image_needs_and_agree():
    main, torch = pins(ROOT / "requirements.lock"), pins(ROOT / "scripts" / "torch.lock")
    project = PYPROJECT["project"]
    assert names(project["dependencies"]) | names(PYPROJECT["build-system"]["requires"]) <= main.keys()
    assert names(project["optional-dependencies"]["gpu"]) <= main.keys() | torch.keys()
    assert "torch" in torch and "torch" not in main
    assert {name: main[name] for name in main.keys() & torch.keys()} == {
        name: torch[name] for name in main.keys() & torch.keys()
    }


# ---------------------------------------------------------------- Modal


@pytest.fixture
def modal_stub(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    stub = MagicMock(name="modal")
    monkeypatch.setitem(sys.modules, "modal", stub)
    for name in ("MAX_TURNS", "STEP_TIMEOUT_S", "MAX_SESSIONS", "REWARD", "MODAL_GPU", "MODAL_MAX_CONTAINERS"):
        monkeypatch.delenv(f"KERNEL_ENV_{name}", raising=False)
    return stub


def test_modal_app_serves_one_gpu_a_container_behind_proxy_auth(modal_stub: MagicMock):
    module = runpy.run_path(str(ROOT / "modal_app.py"))
    defaults = Settings.model_fields
    assert module["STEP_TIMEOUT_S"] == defaults["step_timeout_s"].default
    assert module["MAX_TURNS"] == defaults["max_turns"].default
    assert module["MAX_SESSIONS"] == defaults["max_sessions"].default
    assert module["REWARD"] == defaults["reward"].default
    modal_stub.asgi_app.assert_called_once_with(requires_proxy_auth=True)
    modal_stub.concurrent.assert_called_once()
    assert modal_stub.concurrent.call_args.kwargs["max_inputs"] == module["MAX_SESSIONS"]
    functions = [call.kwargs for call in modal_stub.App.return_value.function.call_args_list]
    served = [function for function in functions if "max_containers" in function]
    assert len(functions) == 2 and len(served) == 1
    assert served[0]["gpu"] == "H100!" and served[0]["min_containers"] == 0
    assert served[0]["timeout"] > module["STEP_TIMEOUT_S"] * module["MAX_TURNS"]
    image_env = modal_stub.Image.from_dockerfile.return_value.env.call_args.args[0]
    assert image_env["KERNEL_ENV_GPUS"] == "0"


def test_modal_app_refuses_a_step_longer_than_modal_lets_a_session_live(
    modal_stub: MagicMock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNEL_ENV_STEP_TIMEOUT_S", "7200")
    with pytest.raises(ValueError, match="Modal would end a session"):
        runpy.run_path(str(ROOT / "modal_app.py"))
    modal_stub.App.assert_not_called()


def test_modal_app_defines_the_gpu_tests():
    tree = ast.parse((ROOT / "modal_app.py").read_text(encoding="utf-8"))
    assert "gpu_tests" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_a_script_beside_a_clone_called_kernel_env_finds_the_package(tmp_path: Path) -> None:
    (tmp_path / "kernel_env").symlink_to(ROOT)
    code = "from kernel_env import KernelAction, KernelEnv; import kernel_env.models as m; print(m.__name__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )
    assert found.stdout.strip() == "kernel_env.models", found.stderr
