"""What scores submissions, as the rest of the server sees it. Imports no evaluator until one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from server.errors import ConfigurationError
from server.roofline import GPUS, find_gpu
from server.settings import Settings
from server.worker.protocol import DeviceInfo, Evaluate, Verdict


class EvaluatorUnavailable(RuntimeError):
    """This evaluator cannot run here; the message is a sentence that an operator can act on."""


@dataclass(frozen=True)
class EvalResult:
    """One evaluation: the verdict, and what it took to get it."""

    verdict: Verdict
    device: DeviceInfo | None = None
    attempts: int = 1
    """How many workers were tried: more than one after a fault of ours."""
    queue_s: float = 0.0
    """Seconds spent waiting for a worker."""
    retried: Sequence[Verdict] = ()
    """What the attempts before the last came to: faults of ours, and signals that anybody could have sent."""


class Evaluator(Protocol):
    """Scores submissions, several at a time. Shared by all sessions; `evaluate` may be awaited from any event loop."""

    @property
    def name(self) -> str:
        """'gpu', 'cpu' or 'mock'."""
        ...

    @property
    def device(self) -> DeviceInfo | None:
        """What it runs on; known after `start`."""
        ...

    def start(self) -> None:
        """Bring the workers up; blocks until one is ready.

        Raises:
            EvaluatorUnavailable: this machine cannot run it.
        """
        ...

    async def evaluate(self, request: Evaluate, deadline_s: float) -> EvalResult:
        """Score one submission within `deadline_s` seconds, the wait for a worker included.

        A bad kernel is a verdict. A fault of ours is a verdict too, with outcome 'infrastructure' and an infra_code.
        Cancelling the awaiting task cancels the evaluation and frees its worker.
        """
        ...

    def status(self) -> dict[str, Any]:
        """A JSON object for GET /status: at least `evaluator`, `workers` and `queue_depth`; where there are compilers
        to be had, also `lacks`: by language, those that this host does not have."""
        ...

    def close(self) -> None:
        """End every worker. A second call does nothing."""
        ...


def create_evaluator(settings: Settings) -> Evaluator:
    """The evaluator that `settings.evaluator` names, not started yet. Nothing falls back to another one."""
    if settings.evaluator == "mock":
        from server.mock_evaluator import MockEvaluator

        return MockEvaluator()
    from server.pool import PoolEvaluator

    return PoolEvaluator(settings)


def check_reward(settings: Settings, device: DeviceInfo | None) -> None:
    """Refuse a reward that this device cannot pay.

    Raises:
        ConfigurationError: the roofline reward on a device without a known roofline.
    """
    if settings.reward != "roofline":
        return
    if device is None or find_gpu(device.name, device.memory_bytes) is None:
        known = ", ".join(gpu.names[0] for gpu in GPUS)
        name = device.name if device is not None else "none"
        raise ConfigurationError(
            f"KERNEL_ENV_REWARD=roofline needs a GPU whose peaks are known ({known}), and this device is {name}: "
            "use KERNEL_ENV_REWARD=speedup."
        )
