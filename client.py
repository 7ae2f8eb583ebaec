"""The client under the name that `openenv push` requires. Import it from `kernel_env`."""

from kernel_env.client import KernelEnv

__all__ = ["KernelEnv"]
