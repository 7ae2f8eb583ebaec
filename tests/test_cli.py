"""The `kernel-env` command: exit codes, what is on stdout, and the demo as a user sees it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from conftest import ScriptedEvaluator

from kernel_env import cli, demo, demo_kernels
from server import app as app_module
from server import evaluator as evaluator_module
from server import static_checks
from server.evaluator import EvalResult, EvaluatorUnavailable
from server.settings import get_settings
from server.tasks import BUILTIN_DIR
from server.worker.protocol import Evaluate, Verdict

TASK = "level1/23_Softmax"


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A file with a correct submission."""
    path = tmp_path / "good.py"
    path.write_text(demo_kernels.GOOD)
    return str(path)


def test_eval_json_is_one_object_and_nothing_else(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", good, "--task", TASK, "--evaluator", "mock", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["stage"], output["outcome"], output["correct"]) == ("scored", "scored", True)
    assert output["speedup"] == pytest.approx(output["t_ref_ms"] / output["t_new_ms"])
    assert output["reward"] > 0
    assert output["feedback"].startswith("MOCK:")


def test_eval_of_a_rejected_file_was_scored_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fallback.py"
    path.write_text(demo_kernels.TORCH_FALLBACK)
    assert cli.main(["eval", str(path), "--task", TASK, "--evaluator", "mock", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["stage"], output["reward"], output["correct"]) == ("static", 0.0, False)
    assert output["t_new_ms"] is None


def test_eval_for_people_says_that_mock_times_are_made_up(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", good, "--task", TASK, "--evaluator", "mock"]) == 0
    output = capsys.readouterr().out
    assert "stage     scored" in output
    assert "made up" in output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--task", "level1/23_Softmux"], TASK),
        (["--task", TASK, "--language", "opencl"], "triton, cuda"),
    ],
)
def test_eval_refusals_are_exit_code_2(
    good: str, arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", good, "--evaluator", "mock", "--json", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert hint in captured.err


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"#" * 1_000_001])
def test_eval_of_an_unusable_file_is_exit_code_2(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernel.py"
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["eval", str(path), "--task", TASK, "--evaluator", "mock"]) == 2
    assert len(capsys.readouterr().err) < 1000


def test_eval_takes_the_evaluator_from_the_environment(
    good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_EVALUATOR", "mock")
    assert cli.main(["eval", good, "--task", TASK, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluator"] == "mock"


def test_wrong_usage_is_exit_code_2() -> None:
    for arguments in ([], ["eval"], ["eval", "file.py"], ["demo", "--evaluator", "none"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments)
        assert exit_info.value.code == 2


def test_an_unavailable_evaluator_is_exit_code_2(
    good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unavailable(ScriptedEvaluator):
        def start(self) -> None:
            raise EvaluatorUnavailable("There is no usable GPU.")

    async def unused(request: Evaluate) -> EvalResult:
        raise AssertionError("not started")

    evaluator = Unavailable(unused)
    monkeypatch.setattr(evaluator_module, "create_evaluator", lambda settings: evaluator)
    assert cli.main(["eval", good, "--task", TASK, "--evaluator", "gpu"]) == 2
    assert capsys.readouterr().err == "kernel-env: There is no usable GPU.\n"
    assert evaluator.closed.is_set()


def test_a_fault_of_ours_is_exit_code_3(
    good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fault(request: Evaluate) -> EvalResult:
        return EvalResult(Verdict("id", "compile", "infrastructure", infra_code="compiler_missing"))

    monkeypatch.setattr(evaluator_module, "create_evaluator", lambda settings: ScriptedEvaluator(fault))
    assert cli.main(["eval", good, "--task", TASK, "--json"]) == 3
    output = json.loads(capsys.readouterr().out)
    assert (output["reward"], output["infra_code"]) == (None, "compiler_missing")


def test_demo_plays_a_whole_episode_in_mock_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    output = capsys.readouterr().out
    turns = output.split("\nturn ")[1:]
    assert len(turns) == 3
    assert "static (static_violation)" in turns[0]
    assert "scored (scored)" in turns[1] and "made up" in turns[1]
    assert "scored (scored)" in turns[2] and "made up" in turns[2]
    assert "The episode is over: 3 turns" in output


def test_demo_of_a_server_that_does_not_start_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.sys, "executable", "/bin/false")
    assert cli.main(["demo"]) == 2
    assert "did not start" in capsys.readouterr().err


@pytest.mark.parametrize("code", [demo_kernels.WRONG, demo_kernels.SLOW, demo_kernels.GOOD])
def test_demo_kernels_pass_the_static_checks(code: str) -> None:
    assert static_checks.check(code, "triton") == []
    assert static_checks.check(code, "triton", cpu=True) == []


def test_demo_in_mock_mode_needs_a_kernel_that_a_parser_rejects() -> None:
    assert static_checks.check(demo_kernels.TORCH_FALLBACK, "triton")


def test_describe_shows_an_answer_without_times_or_reward() -> None:
    from kernel_env.models import InfraCode, KernelObservation, Outcome

    text = cli.describe(
        KernelObservation(outcome=Outcome.INFRASTRUCTURE, infra_code=InfraCode.DISK, feedback="first\nsecond")
    )
    assert "reward    none" in text
    assert text.endswith("feedback  first\n          second")
    assert "times" not in text


def test_eval_runs_inside_a_running_loop(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def inside() -> int:
        return cli.main(["eval", good, "--task", TASK, "--evaluator", "mock", "--json"])

    assert asyncio.run(inside()) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == "scored"


def test_eval_makes_the_server_s_check_of_the_reward(
    good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_ENV_REWARD", "roofline")
    assert cli.main(["eval", good, "--task", TASK, "--evaluator", "mock", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    with pytest.raises(app_module.ConfigurationError) as refused:
        app_module.build_app(get_settings().model_copy(update={"evaluator": "mock"}))
    assert captured.err == f"kernel-env: {refused.value}\n"


def test_the_demo_has_the_builtin_tasks_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBENCH_DIR", "/somewhere/else")
    for evaluator in ("gpu", "mock"):
        assert demo._environment(evaluator, 3)["KERNELBENCH_DIR"] == str(BUILTIN_DIR)
    assert "KERNELBENCH_DIR" not in demo._environment("cpu", 3)  # whose built-in tasks are small ones


# ---------------------------------------------------------------- admit


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A task directory with one task."""
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_Add.py").write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n\n\n"
        "def get_inputs():\n    return [torch.rand(4, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    return tmp_path


def test_admit_measures_a_directory_by_a_relative_path(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tasks.parent)
    monkeypatch.setenv("KERNEL_ENV_EVALUATOR", "cpu")
    assert cli.main(["admit", tasks.name]) == 0
    (row,) = map(json.loads, (tasks / "admission.jsonl").read_text().splitlines())
    assert row["task_id"] == "level1/1_Add"


def test_admit_without_torch_says_so(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["admit", str(tasks)]) == 2
    assert "needs torch" in capsys.readouterr().err


def test_admit_without_a_gpu_says_so(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["admit", str(tasks)]) == 2
    assert "KERNEL_ENV_EVALUATOR=cpu" in capfd.readouterr().err


def test_admit_of_no_tasks_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["admit", str(tmp_path)]) == 2
    assert "level1/NN_name.py" in capsys.readouterr().err


def test_admit_that_fails_is_exit_code_3(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    assert cli.main(["admit", str(tasks)]) == 3
