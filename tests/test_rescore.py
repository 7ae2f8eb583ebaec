"""The evaluation log read back: what a line holds, and `kernel-env rescore`."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ScriptedEvaluator, as_mock, make_settings

from kernel_env import cli, demo_kernels
from kernel_env.models import KernelAction
from server.environment import KernelEnvironment
from server.eval_log import EvalLog
from server.evaluator import EvalResult
from server.rescore import Reading, Result, read, rescore, was_judged
from server.submission import Services
from server.tasks import TaskSource
from server.version import VERSION
from server.worker.protocol import DeviceInfo, Evaluate, TaskFacts, Verdict

TASK = "level1/23_Softmax"
H200 = DeviceInfo("cuda", "NVIDIA H200", 140 << 30, driver="570.1", torch="2.11.0", triton="3.6.0", sandbox="uid+net")
# On an H200's 4.8 TB/s the bytes take 1 ms.
FACTS = TaskFacts(flops=7, input_bytes=4_800_000_000, parameter_bytes=0, output_bytes=0, dtype="float32")
CORRECT = Verdict(
    "set by the script",
    "scored",
    "scored",
    compiled=True,
    correct=True,
    trials_passed=5,
    trials_total=5,
    max_abs_error=0.1 + 0.2,
    t_ref_ms=4.0 / 3.0,
    t_new_ms=1.6180339887498949,
    timed_runs=20,
    timing_method="event",
    t_event_ms=1.6,
    t_wall_ms=1.61,
    t_tolerance_ms=0.01,
    facts=FACTS,
    feedback="told to the model",
)


def logged(path: Path, verdicts: list[Verdict | None], device: DeviceInfo | None = H200, **settings: Any) -> list[str]:
    """Plays an episode of these verdicts (None: a submission that the parser rejects) into a log; returns its lines."""
    waiting = [verdict for verdict in verdicts if verdict is not None]

    async def script(request: Evaluate) -> EvalResult:
        return EvalResult(waiting.pop(0), device)

    log = EvalLog(path, io.StringIO())
    chosen = make_settings(max_turns=100, **settings)
    environment = KernelEnvironment(Services(chosen, ScriptedEvaluator(script), TaskSource.builtin(), log))
    environment.step(KernelAction(code="before reset"))
    environment.reset(task_id=TASK, episode_id="logged")
    for verdict in verdicts:
        code = demo_kernels.GOOD if verdict is not None else demo_kernels.TORCH_FALLBACK
        environment.step(KernelAction(code=code))
    log.close()
    return path.read_text().splitlines()


def verdict(**changes: Any) -> Verdict:
    """CORRECT with changes."""
    from msgspec.structs import replace

    return replace(CORRECT, **changes)


WRONG = verdict(stage="correctness", outcome="wrong_values", correct=False, t_ref_ms=None, t_new_ms=None, facts=None)
FAULT = Verdict("id", "compile", "infrastructure", infra_code="gpu_lost", infra_detail="/secret")
UNSCORABLE = verdict(stage="ready", outcome="unscorable_task", correct=False, t_ref_ms=None, t_new_ms=None)


# ---------------------------------------------------------------- what a line holds


def test_a_line_holds_what_scoring_again_needs(tmp_path: Path) -> None:
    line = json.loads(logged(tmp_path / "log", [CORRECT], roofline_reject=0.5)[-1])
    assert line["code_sha256"] == hashlib.sha256(demo_kernels.GOOD.encode()).hexdigest()
    assert "code" not in line
    assert line["task_hash"] == TaskSource.builtin().get(TASK).hash
    assert line["version"] == VERSION
    assert (line["device"]["driver"], line["device"]["torch"], line["device"]["triton"]) == ("570.1", "2.11.0", "3.6.0")
    assert line["device"]["memory_bytes"] == 140 << 30
    assert line["settings"]["reward"] == "speedup"
    assert line["settings"]["roofline_reject"] == 0.5
    assert line["verdict"]["facts"]["input_bytes"] == 4_800_000_000
    assert line["verdict"]["t_new_ms"] == CORRECT.t_new_ms
    assert line["verdict"]["max_abs_error"] == CORRECT.max_abs_error


def test_every_line_of_a_step_has_the_three_ids(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in logged(tmp_path / "log", [None, CORRECT, WRONG, FAULT])]
    steps = [line for line in lines if line["event"] == "step"]
    assert len(steps) == 5
    assert all({"session_id", "episode_id", "eval_id"} <= line.keys() for line in steps)
    assert steps[0]["episode_id"] is steps[0]["eval_id"] is None
    assert {line["episode_id"] for line in steps[1:]} == {"logged"}
    assert len({line["session_id"] for line in lines}) == 1
    assert len({line["eval_id"] for line in steps[1:]}) == 4


def test_a_cancelled_step_has_its_line(tmp_path: Path) -> None:
    log = EvalLog(tmp_path / "log", io.StringIO())

    async def endless(request: Evaluate) -> EvalResult:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    evaluator = ScriptedEvaluator(endless)
    environment = KernelEnvironment(Services(make_settings(), evaluator, TaskSource.builtin(), log))
    environment.reset(task_id=TASK)

    async def scenario() -> None:
        step = asyncio.ensure_future(environment.step_async(KernelAction(code=demo_kernels.GOOD)))
        await asyncio.to_thread(evaluator.entered.wait)
        step.cancel()
        await asyncio.wait({step})

    asyncio.run(scenario())
    line = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert (line["event"], line["infra_code"], line["reward"]) == ("step", "cancelled", None)
    assert line["eval_id"] == evaluator.requests[0].eval_id


@pytest.mark.parametrize("tail", ["", "# é\u2028\u0085\x00\x0b" + "x" * 20_000])
def test_the_code_is_kept_whole_when_asked(tmp_path: Path, tail: str) -> None:
    code = demo_kernels.GOOD + tail
    log = EvalLog(tmp_path / "log", io.StringIO())
    services = Services(make_settings(eval_log_code=True), ScriptedEvaluator(as_mock), TaskSource.builtin(), log)
    environment = KernelEnvironment(services)
    environment.reset(task_id=TASK)
    environment.step(KernelAction(code=code))
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2
    line = json.loads(lines[-1])
    assert line["code"] == code
    assert hashlib.sha256(line["code"].encode()).hexdigest() == line["code_sha256"]


def test_a_lone_surrogate_in_the_code_does_not_cost_the_line(tmp_path: Path) -> None:
    EvalLog(tmp_path / "log", io.StringIO()).write("step", code="a\ud800b")
    assert json.loads((tmp_path / "log").read_text())["code"] == "a\ufffdb"


# ---------------------------------------------------------------- scoring again


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in read(path, Reading()) if was_judged(event)]


def test_scoring_again_gives_the_same_rewards(tmp_path: Path) -> None:
    impossible = verdict(t_new_ms=0.5)
    contradiction = verdict(t_ref_ms=None)
    logged(tmp_path / "log", [None, CORRECT, WRONG, FAULT, UNSCORABLE, impossible, contradiction])
    events = steps_of(tmp_path / "log")
    assert len(events) == 7
    assert [event["reward"] is None for event in events] == [False, False, False, True, True, False, True]
    assert events[5]["outcome"] == "impossible_time"
    for event in events:
        again = rescore(event)
        assert again.result is Result.UNCHANGED, event
        assert again.before == again.after == event["reward"]


def test_the_other_reward_is_what_a_server_that_pays_it_would_have_paid(tmp_path: Path) -> None:
    verdicts = [None, CORRECT, WRONG, FAULT, verdict(t_new_ms=1.25), verdict(t_new_ms=0.5)]
    logged(tmp_path / "speedup", verdicts)
    logged(tmp_path / "roofline", verdicts, reward="roofline")
    paid = [event["reward"] for event in steps_of(tmp_path / "roofline")]
    again = [rescore(event, "roofline") for event in steps_of(tmp_path / "speedup")]
    assert [step.after for step in again] == paid
    assert [step.result for step in again].count(Result.CHANGED) == 2
    assert [rescore(event, "speedup").after for event in steps_of(tmp_path / "roofline")] == [
        event["reward"] for event in steps_of(tmp_path / "speedup")
    ]


def test_the_environment_does_not_change_what_is_recomputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged(tmp_path / "log", [verdict(t_new_ms=0.7)], roofline_reject=0.5)
    monkeypatch.setenv("KERNEL_ENV_ROOFLINE_REJECT", "0.8")
    monkeypatch.setenv("KERNEL_ENV_REWARD", "roofline")
    monkeypatch.setenv("KERNEL_ENV_MAX_TURNS", "not a number")
    (event,) = steps_of(tmp_path / "log")
    assert event["outcome"] == "scored"
    assert rescore(event).result is Result.UNCHANGED


@pytest.mark.parametrize(
    ("device", "facts"), [(None, FACTS), (DeviceInfo("cpu", "a CPU"), FACTS), (H200, None)], ids=str
)
def test_the_roofline_reward_needs_a_roofline(
    tmp_path: Path, device: DeviceInfo | None, facts: TaskFacts | None
) -> None:
    logged(tmp_path / "log", [verdict(facts=facts), WRONG], device)
    scored, wrong = steps_of(tmp_path / "log")
    assert rescore(scored, "roofline").result is Result.NO_ROOFLINE
    assert rescore(scored, "roofline").after is None
    assert rescore(wrong, "roofline").result is Result.UNCHANGED


@pytest.mark.parametrize("missing", ["verdict", "device", "settings", "task_id"])
def test_a_line_of_an_older_version_is_incomplete(tmp_path: Path, missing: str) -> None:
    logged(tmp_path / "log", [CORRECT])
    (event,) = steps_of(tmp_path / "log")
    del event[missing]
    assert rescore(event).result is Result.INCOMPLETE
    assert rescore({**event, missing: 5} if missing != "task_id" else event).result is Result.INCOMPLETE


def test_a_field_of_a_newer_version_is_no_hindrance(tmp_path: Path) -> None:
    logged(tmp_path / "log", [CORRECT])
    (event,) = steps_of(tmp_path / "log")
    event["verdict"]["added_later"] = {"x": 1}
    event["device"]["added_later"] = 2
    assert rescore(event).result is Result.UNCHANGED


# ---------------------------------------------------------------- the command


def test_rescore_says_how_many_rewards_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    logged(path, [None, CORRECT, WRONG, FAULT])
    with path.open("ab") as file:
        file.write(b'{"event": "step", "torn')
    assert cli.main(["rescore", str(path)]) == 0
    words = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert words["steps"] == words["unchanged"] == "4"
    assert (words["changed"], words["torn_lines"]) == ("0", "1")
    assert words["reward_before"] == words["reward_after"]
    assert cli.main(["rescore", str(path), "--reward", "roofline"]) == 0
    words = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert (words["changed"], words["unchanged"]) == ("1", "3")
    expected = 0.3 + 2.7 / 1.6180339887498949
    assert float(words["reward_after"]) == pytest.approx(expected)


def test_rescore_as_json_has_a_line_for_each_step_and_reads_the_numbered_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    logged(path, [CORRECT])
    path.rename(tmp_path / "log.1")
    logged(path, [WRONG, verdict(t_new_ms=1.0)])
    assert cli.main(["rescore", str(path), "--reward", "roofline", "--json"]) == 0
    *steps, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step["result"] for step in steps] == ["changed", "unchanged", "changed"]
    assert {step["task_id"] for step in steps} == {TASK}
    assert {step["episode_id"] for step in steps} == {"logged"}
    assert steps[2]["after"] == pytest.approx(3.0)
    assert (total["event"], total["steps"], total["changed"]) == ("total", 3, 2)


def test_rescore_of_steps_that_cannot_be_scored_again_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    logged(path, [verdict(facts=None)])
    assert cli.main(["rescore", str(path), "--reward", "roofline"]) == 3
    assert "no_roofline   1" in capsys.readouterr().out


def test_rescore_of_no_log_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rescore", str(tmp_path / "none")]) == 2
    assert cli.main(["rescore", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("kernel-env:") == 2
