"""Prepares a kit with which candidates compile load_inline's sources several times faster. Trusted.

Everything in it comes from torch's and CUDA's own headers and this project: nothing of a submission. Candidates read
it. Runs the compilers for a minute or two, so once for each host, beside whatever else happens:

    python -m server.worker.extension_build DIRECTORY

Touches DIRECTORY, and removes kits beside it that nobody uses. Every file appears there by a rename, so that one that
is being used can be finished after its maker was killed; until it is ready, and where the host lacks a compiler,
candidates compile as torch would. Set TORCH_CUDA_ARCH_LIST as candidates will have it. The process ends when its
standard input does, and takes its compilers along.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from server.worker import extension_compile
from server.worker.extension_compile import (
    BINDING,
    BLANK_MODULE_ID,
    CUDA_HEADER,
    LIGHT,
    MACROS,
    MEDIUM,
    NAMES,
    PREFIX,
)
from server.worker.extension_kit import READY, remove_unused
from server.worker.extension_names import declared, macros

# torch::empty and its like are at::'s here: they differ only for tensors that require gradients.
_TYPES = """
#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
namespace torch {
using namespace at;
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;
}
"""
_CUDA_CONTEXT = """
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
namespace at::cuda { using namespace c10::cuda; }
#ifndef AT_CUDA_CHECK
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#endif
"""
_DEVICE_GUARD = """
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
namespace at {
inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor.device()) : std::nullopt;
}
inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? device_of(*tensor) : std::nullopt;
}
}
"""
_HEADERS = {
    f"{LIGHT}/torch/types.h": _TYPES,
    f"{LIGHT}/torch/extension.h": "#include <torch/types.h>\n",
    f"{LIGHT}/torch/torch.h": "#include <torch/types.h>\n",
    f"{LIGHT}/ATen/ATen.h": "#include <torch/types.h>\n",
    f"{LIGHT}/{CUDA_HEADER}": "#include <torch/types.h>\n",
    f"{LIGHT}/ATen/cuda/CUDAContext.h": _CUDA_CONTEXT,
    # The headers of single operators include these, and need nothing that is left out here.
    f"{LIGHT}/ATen/Context.h": "",
    f"{LIGHT}/ATen/DeviceGuard.h": _DEVICE_GUARD,
    f"{LIGHT}/ATen/TensorUtils.h": "",
    f"{LIGHT}/ATen/TracerMode.h": "",
    f"{MEDIUM}/torch/extension.h": "#include <torch/types.h>\n",
    f"{MEDIUM}/torch/torch.h": "#include <torch/types.h>\n",
    # All of torch's conversions between Python and C++ are in pybind.h.
    f"{BINDING}/torch/extension.h": (
        "#include <torch/types.h>\n#include <torch/csrc/Exceptions.h>\n#include <torch/csrc/utils/pybind.h>\n"
    ),
}
# How load_inline's sources begin that need all of torch's headers.
_FULL = "".join(f"#include <{name}>\n" for name in ("torch/types.h", "cuda.h", "cuda_runtime.h", "torch/extension.h"))
_OPTIMISATIONS = {"O0": [], "O2": ["-O2"]}
"""g++ takes the header that was precompiled with -O2 for -O1 and -O3 too."""
_COMPLETE, _LOCK, _SCRATCH = "complete", "maker.lock", "scratch"


def prepare(directory: Path) -> None:
    """Fill a directory, or finish one that was begun. It can be used as soon as its light part is there.

    Raises:
        RuntimeError, OSError: a compiler is missing or fails. What is there then still works, if less fast.
    """
    tools = _tools()
    _write_files(directory, tools)
    recorded = record_commands(tools)
    scratch = directory / _SCRATCH  # on the same disk, for renames
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    nvcc, cxx = [tools.get("nvcc", ""), *recorded.get("nvcc", [])], [tools["g++"], *recorded.get("g++", [])]
    light = ["-I", str(directory / LIGHT), *extension_compile.forced([CUDA_HEADER])]
    for name, flags in _OPTIMISATIONS.items():
        if "g++" in recorded:
            _precompile_binding(directory, scratch, [*cxx, *flags], name)
        if "nvcc" in recorded:
            _precompile_prefix(directory, scratch, [nvcc[0], *light, *nvcc[1:], *flags], "", f"{LIGHT}-{name}")
        (directory / READY).touch(0o644)
    if "nvcc" in recorded:
        _list_names(directory, scratch, nvcc, light, cxx)
        # Without optimisation only: each of these takes 0.7 GB, and saves 13 s of CPU time in the rare sources that
        # need all of torch.
        _precompile_prefix(directory, scratch, nvcc, _FULL, "full-O0")
    shutil.rmtree(scratch)


def _tools() -> dict[str, str]:
    from torch.utils import cpp_extension

    tools = {}
    if (cxx := shutil.which(os.environ.get("CXX") or "c++")) is None:
        raise RuntimeError("no C++ compiler")
    if "Free Software Foundation" not in _output([cxx, "--version"]):
        raise RuntimeError("the C++ compiler is not GCC")
    tools["g++"] = cxx
    if cpp_extension.CUDA_HOME is not None:
        nvcc = os.path.join(cpp_extension.CUDA_HOME, "bin", "nvcc")
        if os.access(nvcc, os.X_OK):
            tools["nvcc"] = nvcc
    return tools


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _write_files(directory: Path, tools: dict[str, str]) -> None:
    for name, text in _HEADERS.items():
        _write(directory / name, f"#pragma once\n{text}")
    (directory / "prefixes").mkdir(exist_ok=True)
    program = directory / "compile.py"
    _write(program, Path(extension_compile.__file__).read_text())
    _write(directory / "tools.json", json.dumps(tools))
    for tool in tools:
        _write_program(directory / "bin" / tool, [sys.executable, "-I", "-S", str(program.resolve()), tool])


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Put a file there at once. One that has this text already stays: precompiled headers may know its age."""
    data = text.encode("utf-8", "surrogateescape")
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(data)
    partial.chmod(mode)
    partial.replace(path)


def _write_program(path: Path, command: list[str]) -> None:
    words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in command)
    _write(path, f'#!/bin/sh\nexec {words} "$@"\n', 0o755)


_RECORDER = """
import json, sys
arguments = sys.argv[2:]
if "-c" in arguments:
    with open(sys.argv[1], "w") as handle:
        json.dump(arguments, handle)
if "-o" in arguments:
    open(arguments[arguments.index("-o") + 1], "w").close()
else:
    print("13.0.0")
"""


def record_commands(tools: dict[str, str]) -> dict[str, list[str]]:
    """What torch's load_inline asks of g++ and nvcc here, by having it build with programs that only take notes."""
    recorded: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="kernel_env-record-") as name:
        scratch = Path(name)
        (scratch / "recorder.py").write_text(_RECORDER)
        (scratch / "build").mkdir()
        for tool in tools:
            command = [sys.executable, "-I", "-S", str(scratch / "recorder.py"), str(scratch / f"{tool}.json")]
            _write_program(scratch / tool, command)
        program = (
            "from torch.utils.cpp_extension import load_inline\n"
            "import sys\n"
            "load_inline('kernel_env_kit', cpp_sources='', build_directory=sys.argv[1], functions=[],"
            " cuda_sources='' if sys.argv[2] == 'cpu' else '// nothing')\n"
        )
        kind = "cuda" if "nvcc" in tools else "cpu"
        variables = dict(os.environ, CXX=str(scratch / "g++"), PYTORCH_NVCC=str(scratch / "nvcc"))
        # It fails in the end: what was "built" is empty.
        command = [sys.executable, "-c", program, str(scratch / "build"), kind]
        answer = subprocess.run(command, env=variables, capture_output=True, text=True)
        for tool in tools:
            with contextlib.suppress(OSError):
                recorded[tool] = _flags(json.loads((scratch / f"{tool}.json").read_text()))
        if not recorded:
            raise RuntimeError(f"load_inline could not be watched: {answer.stderr[-500:]}")
    return recorded


def _flags(arguments: list[str]) -> list[str]:
    """A compilation's flags without its files, and without what differs from one extension to the next."""
    flags, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in ("-c", "-o", "-MF"):
            skip = True
        elif argument not in ("-MD", "-MMD") and not argument.startswith("-DTORCH_EXTENSION_NAME="):
            flags.append(argument)
    return flags


def _run(command: list[str], variables: dict[str, str] | None = None) -> None:
    answer = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"{os.path.basename(command[0])} failed: {answer.stderr[-1000:]}")


def _precompile(command: list[str], header: Path, scratch: Path, name: str, variables: dict[str, str]) -> None:
    # A directory of that name holds several, and g++ takes the first that fits its flags.
    target = Path(f"{header}.gch")
    target.mkdir(exist_ok=True)
    made = scratch / "made.gch"
    _run([*command, "-x", "c++-header", str(header), "-o", str(made)], variables)
    made.chmod(0o644)
    made.replace(target / name)


def _precompile_binding(directory: Path, scratch: Path, command: list[str], name: str) -> None:
    header = directory / BINDING / "torch" / "extension.h"
    if Path(f"{header}.gch", name).exists():
        return
    command = [command[0], *_shadows(directory), *command[1:]]
    _precompile(command, header, scratch, name, dict(os.environ, LC_ALL="C"))


def _shadows(directory: Path) -> list[str]:
    return [part for name in (BINDING, LIGHT) for part in ("-I", str(directory / name))]


def _precompile_prefix(directory: Path, scratch: Path, command: list[str], source: str, name: str) -> None:
    """What cudafe++ makes of headers: all that it writes for a source that starts with them begins so."""
    header = directory / "prefixes" / name / PREFIX
    if Path(f"{header}.gch", name).exists():
        return
    plan = _plan(scratch, command, source)
    Path(plan.module_id).write_text(BLANK_MODULE_ID)
    for step in plan.host:
        _run(step, plan.environment)
    body = extension_compile.body_of(Path(plan.text).read_text(encoding="utf-8", errors="surrogateescape"))
    _write(header, body[: body.rindex("\n", 0, body.index('.stub.c"'))].rstrip("\n"))
    flags = [part for part in plan.assemble if part not in ("-c", plan.text)]
    for pair in ("-o", "-x"):
        at = flags.index(pair)
        del flags[at : at + 2]
    _precompile(flags, header, scratch, name, plan.environment)


def _plan(scratch: Path, command: list[str], source: str) -> extension_compile.Plan:
    path = scratch / "cuda.cu"
    path.write_text(source)
    arguments = [*command[1:], "-DTORCH_EXTENSION_NAME=kernel_env", "-c", str(path), "-o", str(scratch / "cuda.o")]
    return extension_compile.plan_nvcc(command[0], arguments, str(scratch))


def _list_names(directory: Path, scratch: Path, nvcc: list[str], light: list[str], cxx: list[str]) -> None:
    """By what is missing there, errors are told that the full headers would not cure."""
    full = _preprocessed(_plan(scratch, nvcc, _FULL).host[0])
    known = _preprocessed(_plan(scratch, [nvcc[0], *light, *nvcc[1:]], "").host[0])
    (scratch / "main.cpp").write_text("#include <torch/extension.h>\n")
    binding = [*cxx, "-E", str(scratch / "main.cpp"), "-o", str(scratch / "main.ii")]
    full_binding, known_binding = (
        _preprocessed([binding[0], *more, *binding[1:]]) for more in ([], _shadows(directory))
    )
    _write(directory / MACROS.format("nvcc"), "\n".join(sorted(macros(full) - macros(known))))
    _write(directory / MACROS.format("g++"), "\n".join(sorted(macros(full_binding) - macros(known_binding))))
    for name in (name.removeprefix(f"{LIGHT}/") for name in _HEADERS if name.startswith(f"{LIGHT}/")):
        with contextlib.suppress(RuntimeError):  # CUDAContext.h, where CUDA's libraries are not installed
            full += _preprocessed(_plan(scratch, nvcc, f"#include <{name}>\n").host[0])
    full += full_binding
    _write(directory / NAMES, "\n".join(sorted(declared(full) | macros(full))))


def _preprocessed(command: list[str]) -> str:
    """What a command with -E writes, with every macro's definition."""
    _run([command[0], "-dD", *command[1:]])
    return Path(command[command.index("-o") + 1]).read_text(errors="replace")


def _end_with_input() -> None:
    """Whoever started this process has the other end."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    directory = Path(sys.argv[1])
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.umask(0o022)  # candidates read it as another user
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another judge's process is at it
    remove_unused(directory)
    if (directory / _COMPLETE).exists():
        return
    os.nice(19)
    try:
        prepare(directory)
    except Exception as error:
        sys.exit(f"extension_build: CUDA and C++ sources will compile slowly here: {error}")
    (directory / _COMPLETE).touch()


if __name__ == "__main__":
    main()
