"""What the environment of candidates holds. Reads this process's own; imports nothing heavy."""

from __future__ import annotations

import os
import sys

# What a candidate's environment may hold; everything else stays with the judge.
_ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CC",
    "CXX",
    "LANG",
    "LC_ALL",
    "MAX_JOBS",
)


def candidate_environment(kind: str, capability: str | None) -> dict[str, str]:
    """The zygote's environment. `capability` is the GPU's, as TORCH_CUDA_ARCH_LIST wants it ("9.0")."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    # Keeps torch.cuda.is_available(), which an import calls, from making CUDA unusable after a fork.
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if capability is not None:
        environment["TORCH_CUDA_ARCH_LIST"] = capability
    if kind == "cpu":
        environment["TRITON_INTERPRET"] = "1"
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment
