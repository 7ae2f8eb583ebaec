"""An OpenEnv environment that pays for fast, correct GPU kernels: what a trainer imports. Never imports torch.

The names below load on first use, because importing openenv takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_env.client import KernelEnv
    from kernel_env.errors import (
        CapacityReached,
        InfrastructureFault,
        InvalidRequestError,
        KernelEnvError,
        ServerError,
        SessionLost,
    )
    from kernel_env.models import InfraCode, KernelAction, KernelObservation, KernelState, Outcome, Stage

__all__ = [
    "CapacityReached",
    "InfraCode",
    "InfrastructureFault",
    "InvalidRequestError",
    "KernelAction",
    "KernelEnv",
    "KernelEnvError",
    "KernelObservation",
    "KernelState",
    "Outcome",
    "ServerError",
    "SessionLost",
    "Stage",
]

_HOMES = {
    "KernelEnv": "kernel_env.client",
    **dict.fromkeys(
        (
            "CapacityReached",
            "InfrastructureFault",
            "InvalidRequestError",
            "KernelEnvError",
            "ServerError",
            "SessionLost",
        ),
        "kernel_env.errors",
    ),
    **dict.fromkeys(
        ("InfraCode", "KernelAction", "KernelObservation", "KernelState", "Outcome", "Stage"), "kernel_env.models"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
