"""The server's settings: what an empty or a wrong variable does, and how the message names it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kernel_env import cli
from server import app as app_module
from server.settings import Settings, explain, get_settings

NUMBERS = (
    *("ATOL", "RTOL", "COMPILE_TIMEOUT_S", "RUN_TIMEOUT_S", "QUEUE_TIMEOUT_S", "STEP_TIMEOUT_S"),
    *("ROOFLINE_REJECT", "EVAL_LOG_MAX_MB"),
)


def variable(field: str) -> str:
    return "KERNELBENCH_DIR" if field == "kernelbench_dir" else f"KERNEL_ENV_{field.upper()}"


@pytest.mark.parametrize("field", sorted(Settings.model_fields.keys() - {"token"}))
def test_an_empty_variable_means_unset(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable(field), "")
    assert Settings() == Settings.model_construct(**{n: f.default for n, f in Settings.model_fields.items()})


def test_an_empty_token_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_ENV_TOKEN", "")
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("GPUS", value) for value in (",", "0,0", "-1", "0,-1", "x", "0;1", "1.5", "\u0663")),
        *((name, value) for name in NUMBERS for value in ("nan", "inf", "-1")),
        *((name, "0.5") for name in ("COMPILE_TIMEOUT_S", "RUN_TIMEOUT_S")),
        ("MAX_TURNS", "none"),
        ("EVALUATOR", "tpu"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KERNEL_ENV_{name}", value)
    with pytest.raises(ValidationError) as raised:
        Settings()
    message = explain(raised.value)
    assert message.startswith(f"KERNEL_ENV_{name}: ")
    assert message.count("KERNEL_ENV_") == 1


def test_gpus_are_a_comma_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_ENV_GPUS", " 3, 1,")
    assert Settings().gpus == [3, 1]


def test_the_server_and_the_command_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("KERNEL_ENV_GPUS", "0,0")
    with pytest.raises(SystemExit):
        app_module.main([])
    assert "KERNEL_ENV_GPUS" in capsys.readouterr().err
    get_settings.cache_clear()
    assert cli.main(["eval", __file__, "--task", "level1/23_Softmax", "--evaluator", "mock"]) == 2
    assert "KERNEL_ENV_GPUS" in capsys.readouterr().err


def test_an_unusable_log_file_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    path = f"{tmp_path}/absent/log.jsonl"
    monkeypatch.setenv("KERNEL_ENV_EVALUATOR", "mock")
    monkeypatch.setenv("KERNEL_ENV_EVAL_LOG", path)
    with pytest.raises(SystemExit) as stopped:
        app_module.main([])
    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err
        == f"kernel_env: KERNEL_ENV_EVAL_LOG: {path} cannot be opened: No such file or directory\n"
    )
