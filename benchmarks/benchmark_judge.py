"""The judge with what only a benchmark may change; runs in the judge's place (PoolEvaluator.judge_module).

BENCHMARK_JUDGE in the environment is a JSON object with switches. `self_test`: the submission is the reference, so
it runs as the baseline does, without the guard and its output is not judged, though the judge does the same work.
`every_run`: timing does not stop early. `whole_pytorch`: a submission may use all of it, but not in forward. Always: a
verdict's infra_detail, which only logs see, holds the timed calls' event times and how long the host queued them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from server.worker import evaluation, judge, timing
from server.worker.calls import Evaluation
from server.worker.compare import compare
from server.worker.protocol import Evaluate, Ran, Verdict
from server.worker.task_context import Draw, Reference
from server.worker.timing import Sample

VARIABLE = "BENCHMARK_JUDGE"


def _run_without_guard() -> None:
    plain = Evaluation.open

    def trusting(self: Evaluation, stack: ExitStack, source: str, *_: Any, **__: Any) -> None:
        plain(self, stack, source, trusted=True)

    def same_work(
        self: Evaluation,
        reference: Reference,
        draw: Draw,
        forward_seed: int | None,
        answer: Ran,
        tight: Sequence[float | None] = (),
    ) -> None:
        # Without the guard a candidate puts no output into its slot.
        request, task = self._request, self._task
        _, expected = task.expected(reference, draw, forward_seed)
        inputs = draw.arguments()
        compare(expected, expected, task_id=task.task_id, atol=request.atol, rtol=request.rtol, inputs=inputs)

    Evaluation.open = trusting
    Evaluation.verify = same_work


def _leave_pytorch() -> None:
    plain = Evaluation.open

    def whole(self: Evaluation, stack: ExitStack, source: str, *_: Any, **__: Any) -> None:
        trusted = source == self._request.task_source
        plain(self, stack, source, trusted=True)
        self._trusted = trusted

    Evaluation.open = whole


def _time_every_run() -> None:
    timing.settled = lambda values, reference_ms: False
    evaluation.TIMING_BUDGET_S = dict.fromkeys(evaluation.TIMING_BUDGET_S, math.inf)


def _report_samples() -> None:
    call, timed_calls, evaluate = Evaluation.call, evaluation.timed_calls, judge.Judge.evaluate
    queued_ms: list[float] = []
    timed: dict[str, list[float]] = {}

    def recorded_call(self: Evaluation, *arguments: Any, **values: Any) -> tuple[Ran, float]:
        answer, window_ms = call(self, *arguments, **values)
        queued_ms.append(answer.queued_ms)
        return answer, window_ms

    def recorded_calls(*arguments: Any, **values: Any) -> list[Sample]:
        queued_ms.clear()
        samples = timed_calls(*arguments, **values)
        timed["events_ms"] = [round(sample.event_ms, 6) for sample in samples]
        timed["queued_ms"] = [round(value_ms, 6) for value_ms in queued_ms]
        return samples

    def reported(self: judge.Judge, request: Evaluate) -> Verdict:
        verdict = evaluate(self, request)
        if verdict.outcome == "scored":
            verdict.infra_detail = json.dumps(timed)
        return verdict

    Evaluation.call = recorded_call
    evaluation.timed_calls = recorded_calls
    judge.Judge.evaluate = reported


def main() -> None:
    switches = json.loads(os.environ[VARIABLE])
    if switches["self_test"]:
        _run_without_guard()
    if switches["whole_pytorch"]:
        _leave_pytorch()
    if switches["every_run"]:
        _time_every_run()
    _report_samples()
    judge.main()


if __name__ == "__main__":
    main()
