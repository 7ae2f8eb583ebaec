"""The models under the name that `openenv push` requires. Import them from `kernel_env`."""

from kernel_env.models import KernelAction, KernelObservation, KernelState

__all__ = ["KernelAction", "KernelObservation", "KernelState"]
