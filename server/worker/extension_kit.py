"""The kit with which candidates compile load_inline's sources faster, seen from a judge and from a candidate.

A judge keeps it in use and has extension_build.py make it; kits that no judge uses are that one's to remove. Touches
the cache directory, and starts that process. Candidates read the kit and never write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

READY = "ready"
"""The file that says that a kit can be used."""
VARIABLE = "KERNEL_ENV_EXTENSION_KIT"
"""By which a zygote knows where it is; candidates get `environment` instead."""
PREFIX = "extension-kit-"
# Where root keeps it when candidates, who are other users, may not pass the way to its own cache.
_OPEN_CACHE = Path("/var/cache/kernel_env")
_PROGRAMS = ("extension_build.py", "extension_compile.py", "extension_names.py")


def environment(directory: str) -> dict[str, str]:
    """The variables by which the calling candidate's torch finds the kit's compilers; none before it is ready.

    None either where the candidate could write to it, and another would run what it left there: without another user
    or Landlock, or where its private directory lies over the kit's way. So it is tried, once confined.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(directory, READY), os.O_WRONLY))
        return {}
    return compilers(directory)


def compilers(directory: str) -> dict[str, str]:
    """As `environment`, also for who may write there."""
    if not os.access(os.path.join(directory, READY), os.R_OK):
        return {}
    found = {"CXX": os.path.join(directory, "bin", "g++")}
    if os.access(nvcc := os.path.join(directory, "bin", "nvcc"), os.X_OK):
        found["PYTORCH_NVCC"] = nvcc
    return found


def for_zygote(kit: Kit | None, judges: int) -> dict[str, str]:
    """What a zygote's environment has for compilers. Together its judges' candidates use each core once."""
    jobs = os.environ.get("MAX_JOBS") or str(max(1, len(os.sched_getaffinity(0)) // judges))
    return {"MAX_JOBS": jobs} | ({VARIABLE: kit.directory} if kit is not None else {})


class Kit:
    """The kit for this host's compilers and one kind of GPU, in use until `close`.

    It is made in the background, by one process however many judges ask, and again for another torch, compiler, Python
    or version of this project. Raises OSError where there is no place for it.
    """

    def __init__(self, cache: Path, capability: str) -> None:
        """`capability` is the GPU's ("9.0")."""
        self._directory = _open_to_candidates(cache.absolute()) / f"{PREFIX}{_key(capability)}"
        self._in_use = _hold(self._directory)
        # It ends with its compilers when the pipe is closed, which the end of this process does too.
        self.maker = subprocess.Popen(
            [sys.executable, "-m", "server.worker.extension_build", str(self._directory)],
            env=dict(os.environ, TORCH_CUDA_ARCH_LIST=capability, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            stdin=subprocess.PIPE,
            process_group=0,
        )

    @property
    def directory(self) -> str:
        return str(self._directory)

    def readable_names(self) -> dict[str, str]:
        """What server.text.scrub_paths makes of the kit in a compiler's output: the names of the real compilers."""
        return {f"{self._directory}/bin/": "", str(self._directory): "<kit>"}

    def close(self) -> None:
        """End the process that makes it, and what that has started."""
        assert self.maker.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.maker.pid, signal.SIGKILL)
        self.maker.wait()
        self.maker.stdin.close()
        os.close(self._in_use)


def remove_unused(directory: Path) -> None:
    """Remove the kits beside `directory` that no judge uses: of another torch, say."""
    for other in directory.parent.glob(f"{PREFIX}*"):
        if other.name == directory.name:
            continue
        with contextlib.suppress(OSError):
            handle = os.open(other, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other)
            finally:
                os.close(handle)


def _hold(directory: Path) -> int:
    """A descriptor that keeps `directory`, made if need be, from being removed."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(directory)):
                os.chmod(directory, 0o755)
                return handle
        os.close(handle)  # it was removed meanwhile


def _open_to_candidates(cache: Path) -> Path:
    if os.geteuid() != 0:
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    passable = all(path.stat().st_mode & 0o001 for path in (cache, *cache.parents))
    return cache if passable else _OPEN_CACHE


def _key(capability: str) -> str:
    import torch
    from torch.utils import cpp_extension

    parts = [capability, sys.version, sys.executable, torch.__version__, str(cpp_extension.CUDA_HOME)]
    nvcc = os.path.join(cpp_extension.CUDA_HOME or "", "bin", "nvcc")
    for tool in (torch.__file__, shutil.which(os.environ.get("CXX") or "c++"), nvcc):
        with contextlib.suppress(OSError, TypeError):
            path = os.path.realpath(tool)  # type: ignore[arg-type]
            parts.append(f"{path} {os.stat(path).st_mtime_ns}")
    parts += [Path(__file__).with_name(name).read_text() for name in _PROGRAMS]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
