"""The evaluator for machines without torch: nothing runs, and every submission that reaches it is "correct".

The times are a function of the source alone, so that tests and demos repeat; they are labelled as fake wherever they
show. Static checks happen before an evaluator is asked, and are the real ones.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kernel_env.models import Outcome, Stage
from server.evaluator import EvalResult
from server.worker.protocol import DeviceInfo, Evaluate, Verdict

FEEDBACK = "MOCK: nothing was compiled or run; these times are made up from a hash of the source."


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "little") / 2**48


class MockEvaluator:
    """Answers at once: t_ref_ms in [1, 10) from the task, speedup in [1/2, 4) from the code."""

    name = "mock"
    device: DeviceInfo | None = DeviceInfo(kind="mock", name="mock (no device)")

    def start(self) -> None:
        """Nothing to start."""

    async def evaluate(self, request: Evaluate, deadline_s: float) -> EvalResult:
        """A correct verdict with made-up times. Never waits."""
        t_ref_ms = 1.0 + 9.0 * _fraction(request.task_source)
        speedup = 2.0 ** (3.0 * _fraction(request.code) - 1.0)
        verdict = Verdict(
            eval_id=request.eval_id,
            stage=Stage.SCORED.value,
            outcome=Outcome.SCORED.value,
            feedback=FEEDBACK,
            compiled=True,
            correct=True,
            trials_passed=request.trials,
            trials_total=request.trials,
            t_ref_ms=t_ref_ms,
            t_new_ms=t_ref_ms / speedup,
            timed_runs=request.timed_runs,
            timing_method="mock",
        )
        return EvalResult(verdict=verdict, device=self.device)

    def status(self) -> dict[str, Any]:
        """No workers and no queue."""
        return {"evaluator": self.name, "workers": [], "queue_depth": 0}

    def close(self) -> None:
        """Nothing to end."""
