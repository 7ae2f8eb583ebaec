"""The `kernel-env` command: `demo` plays an episode against a server of its own, `eval` scores one file in process,
`rescore` recomputes the rewards of an evaluation log, `admit` measures which tasks of a directory can be scored,
`baseline` times the references ahead of training.

Touches the terminal, for `demo` and `admit` a child process, and for `demo` a local port. Heavy imports happen inside
the commands.
Exit codes: 0 done (a scored file, whatever its score), 2 wrong usage or something that cannot run here, 3 a fault
that left the submission, a step of the log, or a task without a score.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_env.models import KernelObservation
    from server.rewards import RewardMode

EVALUATORS = ("gpu", "cpu", "mock")
EXIT_USAGE = 2
EXIT_NOT_SCORED = 3


class _Stop(Exception):
    """Ends the command: one sentence on stderr, and the exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="kernel-env", description="Write GPU kernels, and have them judged.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="start a server and play one episode with a built-in task")
    demo.add_argument("--evaluator", choices=EVALUATORS, default="mock", help="what judges (default: mock)")
    evaluate = commands.add_parser("eval", help="score one file without a server")
    evaluate.add_argument("file", type=Path, metavar="FILE", help="Python source that defines ModelNew")
    evaluate.add_argument("--task", required=True, metavar="ID", help="for example level1/23_Softmax")
    evaluate.add_argument("--language", default="triton", help="triton (default) or cuda")
    evaluate.add_argument("--evaluator", choices=EVALUATORS, help="default: KERNEL_ENV_EVALUATOR, else gpu")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    again = commands.add_parser("rescore", help="recompute the rewards of an evaluation log, without a GPU")
    again.add_argument("log", type=Path, metavar="LOG", help="KERNEL_ENV_EVAL_LOG; its numbered files are read too")
    again.add_argument("--reward", choices=("speedup", "roofline"), help="default: the one each step was paid by")
    again.add_argument("--json", action="store_true", help="print a JSON line for each step and one for the sum")
    admission = commands.add_parser("admit", help="measure which tasks of your own can be scored; needs torch")
    admission.add_argument("directory", type=Path, metavar="DIR", help="holds level1/, ...; gets admission.jsonl")
    baseline = commands.add_parser("baseline", help="time the references, so that no step has to wait for it")
    baseline.add_argument("--split", choices=("train", "eval"), help="default: all tasks")
    baseline.add_argument("--only", default="", metavar="SUBSTR", help="only tasks whose id contains this")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "demo":
            from kernel_env.demo import play

            return play(arguments.evaluator)
        if arguments.command == "rescore":
            return _rescore(arguments.log, arguments.reward, arguments.json)
        if arguments.command == "admit":
            return _admit(arguments.directory)
        if arguments.command == "baseline":
            return _baseline(arguments.split, arguments.only)
        return _evaluate(arguments.file, arguments.task, arguments.language, arguments.evaluator, arguments.json)
    except _Stop as stop:
        print(f"kernel-env: {stop}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        return 130


def _evaluate(path: Path, task_id: str, language: str, evaluator_name: str | None, as_json: bool) -> int:
    """Score one file with the environment itself, so that the answer is the one a trainer would get."""
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise _Stop(f"cannot read {path}: {exc}") from exc

    from pydantic import ValidationError

    from kernel_env.models import KernelAction
    from server.environment import KernelEnvironment, Refused
    from server.errors import ConfigurationError, TaskSourceError
    from server.eval_log import EvalLog
    from server.evaluator import EvaluatorUnavailable, check_reward, create_evaluator
    from server.settings import explain, get_settings
    from server.submission import Services
    from server.tasks import TaskSource

    try:
        settings = get_settings()
    except ValidationError as exc:
        raise _Stop(f"invalid settings: {explain(exc)}") from exc
    try:
        action = KernelAction(code=code)
    except ValidationError as exc:
        raise _Stop(f"{path}: {exc.errors()[0]['msg']}") from exc
    if evaluator_name is not None:
        settings = settings.model_copy(update={"evaluator": evaluator_name})
    evaluator = create_evaluator(settings)
    try:
        log = EvalLog(None, io.StringIO())  # the answer is printed instead
        services = Services(settings, evaluator, TaskSource.open(settings, evaluator.name), log)
        environment = KernelEnvironment(services)
        environment.reset(task_id=task_id, language=language)
        evaluator.start()
        check_reward(settings, evaluator.device)
        observation = environment.step(action)
    except (Refused, ConfigurationError, TaskSourceError, EvaluatorUnavailable) as exc:
        raise _Stop(str(exc)) from exc
    finally:
        evaluator.close()
    if as_json:
        skipped = {"metadata", "problem", "done", "turn", "max_turns", "best_reward", "split"}
        print(json.dumps(observation.model_dump(mode="json", exclude=skipped)))
    else:
        print(describe(observation))
    return 0 if observation.reward is not None else EXIT_NOT_SCORED


def _rescore(path: Path, mode: RewardMode | None, as_json: bool) -> int:
    """Recompute the rewards of a log; says how many changed."""
    from server.rescore import Reading, Result, files, read, rescore, was_judged

    reading, counts = Reading(), dict.fromkeys(Result, 0)
    paid_before = paid_after = 0.0
    paths = files(path)
    if not paths:
        raise _Stop(f"there is no {path}")
    try:
        for event in (event for file in paths for event in read(file, reading) if was_judged(event)):
            step = rescore(event, mode)
            counts[step.result] += 1
            paid_before += step.before or 0.0
            paid_after += step.after or 0.0
            if as_json:
                ids = {name: event.get(name) for name in ("session_id", "episode_id", "eval_id", "task_id")}
                print(json.dumps({"event": "rescored", **ids, **dataclasses.asdict(step)}))
    except OSError as exc:
        raise _Stop(f"cannot read {path}: {exc}") from exc
    total = {"steps": sum(counts.values()), **counts, "torn_lines": reading.torn}
    total |= {"reward_before": paid_before, "reward_after": paid_after}
    if as_json:
        print(json.dumps({"event": "total", **total}))
    else:
        print("\n".join(f"{name:14}{value:.10g}" for name, value in total.items()))
    return EXIT_NOT_SCORED if counts[Result.NO_ROOFLINE] or counts[Result.INCOMPLETE] else 0


def _admit(directory: Path) -> int:
    """Measure a directory's tasks in a child, because the judge's side of the project is a program of its own."""
    if not any(directory.glob("level[1-3]/*.py")):
        raise _Stop(f"{directory} has no level1/NN_name.py ... level3/NN_name.py files")
    if importlib.util.find_spec("torch") is None:
        raise _Stop(
            "admit runs the tasks and needs torch: install the extra gpu (or cpu, for tasks that a CPU can run)"
        )
    directory = directory.resolve()
    command = [sys.executable, "-m", "server.worker.admit", str(directory), "--out", str(directory / "admission.jsonl")]
    # From where `server` is too, installed or not.
    finished = subprocess.run(command, cwd=Path(__file__).resolve().parents[1], check=False)
    return finished.returncode if finished.returncode in (0, EXIT_USAGE) else EXIT_NOT_SCORED


def _baseline(split: str | None, only: str) -> int:
    """Time the references of a split with the judges that a server would start."""
    from pydantic import ValidationError

    from server.baseline import measure
    from server.errors import TaskSourceError
    from server.evaluator import EvaluatorUnavailable
    from server.settings import explain, get_settings

    try:
        settings = get_settings()
    except ValidationError as exc:
        raise _Stop(f"invalid settings: {explain(exc)}") from exc
    if settings.evaluator != "gpu":
        raise _Stop(f"KERNEL_ENV_EVALUATOR={settings.evaluator} keeps no times: only those of a GPU last")
    try:
        failed = measure(settings, split, only)
    except (TaskSourceError, EvaluatorUnavailable) as exc:
        raise _Stop(str(exc)) from exc
    for task_id, reason in failed:
        print(f"{task_id}: {reason}", file=sys.stderr)
    return EXIT_NOT_SCORED if failed else 0


def describe(observation: KernelObservation) -> str:
    """One answer as a person wants to read it."""
    reward = "none" if observation.reward is None else f"{observation.reward:.3f}"
    lines = [f"stage     {observation.stage.value} ({observation.outcome.value})", f"reward    {reward}"]
    if observation.t_ref_ms is not None and observation.t_new_ms is not None:
        fake = "  <- made up by the mock evaluator, not measured" if observation.timing_method == "mock" else ""
        speedup = f", {observation.speedup:.2f}x" if observation.speedup is not None else ""
        lines.append(
            f"times     eager PyTorch {observation.t_ref_ms:.4g} ms, yours {observation.t_new_ms:.4g} ms{speedup}{fake}"
        )
    if observation.roofline_frac is not None:
        lines.append(f"roofline  {observation.roofline_frac:.0%} ({observation.bound}-bound)")
    first, *rest = observation.feedback.splitlines() or [""]
    lines += [f"feedback  {first}", *(f"          {line}" for line in rest)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
