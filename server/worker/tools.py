"""What a host lacks of the compilers that submissions need. Imports nothing heavy: the server asks too."""

from __future__ import annotations

import os
import re
import shutil
import sys

_OF_A_COMPILER = re.compile(r"compiler|ninja|nvcc|clang|\bg?cc\b|[cg]\+\+|\bld\b")


def missing_tools(kind: str, language: str) -> list[str]:
    """What a submission in `language` needs to be compiled for a `kind` of device ("cuda" or "cpu"), and lacks."""
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))
    directories = [os.environ.get("PATH", ""), *(os.path.join(home, "bin") for home in homes)]
    path = os.pathsep.join([*directories, os.path.dirname(sys.executable)])
    wanted: list[tuple[str, ...]] = []
    if language == "cuda":
        wanted += [("ninja",), (os.environ.get("CXX") or "c++",)]
    if kind == "cuda":
        wanted.append(("nvcc",) if language == "cuda" else (os.environ.get("CC") or "gcc", "cc", "clang"))
    if wanted:
        wanted += [("as", "clang"), ("ld", "ld.lld", "ld.gold", "mold")]
    return [names[0] for names in wanted if not any(shutil.which(name, path=path) for name in names)]


def missed(outcome: str, message: str, kind: str, language: str) -> list[str]:
    """What this host lacks, where a failure can be for that: a compile error, or another that speaks of a compiler."""
    if outcome == "compile_error" or (outcome in _MEETS_A_COMPILER and _OF_A_COMPILER.search(message)):
        return missing_tools(kind, language)
    return []


# Triton compiles at the first call.
_MEETS_A_COMPILER = frozenset({"import_error", "construction_error", "runtime_error"})
