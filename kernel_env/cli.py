"""The `kernel-env` command: `demo` plays an episode against a server of its own, `eval` scores one file in process.

Touches the terminal, and for `demo` a child process and a local port. Heavy imports happen inside the commands.
Exit codes: 0 done (a scored file, whatever its score), 2 wrong usage or an evaluator that cannot run here, 3 a fault
that left the submission without a score.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_env.models import KernelObservation

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
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "demo":
            from kernel_env.demo import play

            return play(arguments.evaluator)
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
    from server.errors import TaskSourceError
    from server.eval_log import EvalLog
    from server.evaluator import EvaluatorUnavailable, create_evaluator
    from server.settings import get_settings
    from server.submission import Services
    from server.tasks import TaskSource

    try:
        settings = get_settings()
        action = KernelAction(code=code)
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise _Stop(problems) from exc
    if evaluator_name is not None:
        settings = settings.model_copy(update={"evaluator": evaluator_name})
    evaluator = create_evaluator(settings)
    try:
        log = EvalLog(None, io.StringIO())  # the answer is printed instead
        services = Services(settings, evaluator, TaskSource.open(settings, evaluator.name), log)
        environment = KernelEnvironment(services)
        environment.reset(task_id=task_id, language=language)
        evaluator.start()
        observation = environment.step(action)
    except (Refused, TaskSourceError, EvaluatorUnavailable) as exc:
        raise _Stop(str(exc)) from exc
    finally:
        evaluator.close()
    if as_json:
        skipped = {"metadata", "problem", "done", "turn", "max_turns", "best_reward", "split"}
        print(json.dumps(observation.model_dump(mode="json", exclude=skipped)))
    else:
        print(describe(observation))
    return 0 if observation.reward is not None else EXIT_NOT_SCORED


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
