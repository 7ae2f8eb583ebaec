"""Stands in for nvcc and g++ in a candidate: compiles what load_inline writes in less time, else does what they do.

Copied by extension_build.py into the kit and run there as `python -I -S compile.py nvcc|g++ ARGUMENT...`, so it imports
nothing but the standard library. A convenience in an untrusted process, never a defence. It reads the kit and writes
beside the object that it is asked for. Whatever it does not know, or fails at, goes to the real compiler.

A source that includes torch's headers first is tried with the kit's light ones: torch's own, less those that kernels
rarely use. An error that more could cure means another try, with all of torch/types.h and then with the full headers,
and only what the last one says is shown.
nvcc's two front ends run side by side, and g++ skips what its precompiled header holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

LIGHT, BINDING, MEDIUM, CUDA_HEADER = "light", "binding", "medium", "kernel_env_cuda.h"
PREFIX = "prefix.h"
BLANK_MODULE_ID = "_kernel_env_" + 16 * "0"
_TORCH_INCLUDE = re.compile(
    r'^\s*#\s*include\s*[<"](torch/extension\.h|torch/types\.h|torch/torch\.h|ATen/ATen\.h)[>"]'
)
# Macros by which torch's, Python's or CUDA's headers are told to be something else.
_STEERING = re.compile(
    r"^\s*#\s*(?:define|undef)\s+(?:TORCH|AT_|C10|CAFFE2|PYBIND|PY|Py|CUDA|THRUST|CUB|CCCL|USE_|NDEBUG|_)"
)
# A demand for gradients is what torch::empty heeds and at::empty, which the light headers take for it, does not.
_NEEDS_TYPES = re.compile(r"\brequires_grad\s*\((?!\s*(?:false\s*)?\))")
_NEEDS_FULL = re.compile(r"\btorch\s*::\s*(?:nn|optim|jit|autograd|data|serialize)\b")
_NEVER_DEFINED = b"used but never defined"
NAMES, MACROS = "full-names.txt", "{}-macros.txt"
"""What the full headers know, and the macros that the light ones of a tool lack."""
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# cudafe++'s and cicc's, then g++'s.
_ERROR = re.compile(r"(.+?)(?:\(\d+\)|:\d+:\d+): error(?: #[\w-]+)?: (.*)")
# Errors that more declarations do not cure, unless they declare the name.
_UNKNOWN_NAME = re.compile(
    r"""(?:identifier|class "at::Tensor" has no member) "(\w+)"(?: is undefined)?$"""
    r"""|['\u2018](\w+)['\u2019] (?:was not declared in this scope|does not name a type|has not been declared)"""
)
_SYNTAX = re.compile(r"expected |type name is not allowed$")


class Unknown(Exception):
    """Not what load_inline asks for: the real compiler's business."""


@dataclass(frozen=True)
class Result:
    code: int
    output: bytes


class Steps:
    """Runs commands, and ends all that still run when one of them makes the rest pointless."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._ended = False

    def run(self, command: list[str]) -> Result:
        with self._lock:
            if self._ended:
                return Result(1, b"")
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            self._running.add(process.pid)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process.pid)
        return Result(process.returncode, output)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def sequence(self, commands: list[list[str]]) -> Result:
        output = b""
        for command in commands:
            result = self.run(command)
            output += result.output
            if result.code != 0:
                return Result(result.code, output)
        return Result(0, output)


@dataclass
class Plan:
    """What `nvcc --dryrun` says it would do."""

    host: list[list[str]]
    device: list[list[str]]
    assemble: list[str]
    environment: dict[str, str]
    text: str
    """The C++ that the host's front end writes and `assemble` compiles."""
    module_id: str


def plan_nvcc(nvcc: str, arguments: list[str], keep: str) -> Plan:
    """Raises Unknown: not one source whose device code is compiled for good here."""
    command = [nvcc, "--dryrun", "--keep", "--keep-dir", keep, *arguments]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if answer.returncode != 0:
        raise Unknown("nvcc does not accept the command")
    environment = dict(os.environ, LC_ALL="C")
    commands: list[list[str]] = []
    for line in answer.stderr.splitlines():
        if not line.startswith("#$ "):
            continue
        if (setting := re.match(r"#\$ (\w+)=(.*)$", line)) is not None:
            environment[setting[1]] = setting[2]
        else:
            expanded = re.sub(r"\$(\w+)", lambda name: environment.get(name[1], ""), line[3:])
            commands.append(shlex.split(expanded))
    return sort_commands(commands, environment)


def sort_commands(commands: list[list[str]], environment: dict[str, str]) -> Plan:
    names = [os.path.basename(command[0]) for command in commands]
    if names.count("cudafe++") != 1 or "cicc" not in names or not commands or "-c" not in commands[-1]:
        raise Unknown("not one source of device code")
    if set(names) - {"gcc", "g++", "cudafe++", "cicc", "ptxas", "fatbinary", "rm"}:
        raise Unknown(f"an unknown step among {names}")
    front = names.index("cudafe++")
    front_command = commands[front]
    if any(flag.startswith("--device-c") for command in commands for flag in command):
        raise Unknown("device code to be linked later")
    source = _value(front_command, "--gen_c_file_name")
    host, device = [], []
    for command, name in zip(commands[:-1], names[:-1], strict=True):
        if name == "cudafe++":
            host.append([part for part in command if part != "--gen_module_id_file"])
        elif "-E" in command and not any(part.startswith("-D__CUDA_ARCH__=") for part in command):
            host.append(command)
        elif name != "rm":
            device.append(command)
    return Plan(host, device, commands[-1], environment, source, _value(front_command, "--module_id_file_name"))


def _value(command: list[str], flag: str) -> str:
    if flag not in command:
        raise Unknown(f"no {flag}")
    return command[command.index(flag) + 1]


def run_plan(plan: Plan, module_id: str, prefixes: list[str]) -> Result:
    """Both front ends side by side, then g++. The output is in nvcc's order."""
    with open(plan.module_id, "w") as handle:
        handle.write(module_id)
    steps = Steps(plan.environment)
    found: list[Result] = []

    def device_side() -> None:
        found.append(steps.sequence(plan.device))

    thread = threading.Thread(target=device_side)
    thread.start()
    host = steps.sequence(plan.host)
    if host.code != 0:
        steps.end()
    thread.join()
    if host.code != 0:
        return host
    if found[0].code != 0:
        return Result(found[0].code, host.output + found[0].output)
    # The device's front end repeats the warnings of the host's.
    last = _assemble(plan, prefixes, steps)
    return Result(last.code, host.output + last.output)


def _assemble(plan: Plan, prefixes: list[str], steps: Steps) -> Result:
    with open(plan.text, encoding="utf-8", errors="surrogateescape") as handle:
        text = handle.read()
    for directory in prefixes:
        shorter = cut_prefix(text, os.path.join(directory, PREFIX))
        if shorter is None:
            continue
        with open(plan.text, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(shorter)
        result = steps.run([plan.assemble[0], "-I", directory, *plan.assemble[1:]])
        if result.code == 0 and _NEVER_DEFINED not in result.output:
            return result
        with open(plan.text, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(text)
    return steps.run(plan.assemble)


def body_of(text: str) -> str:
    """What cudafe++ writes, less its first line, the source's name."""
    return text[text.index("\n") + 1 :]


def cut_prefix(text: str, prefix: str) -> str | None:
    """`text` with an include of the file `prefix` where it has exactly its content; None when it starts otherwise."""
    try:
        with open(prefix, encoding="utf-8", errors="surrogateescape") as handle:
            known = handle.read()
    except OSError:
        return None
    body = body_of(text)
    return f'#include "{PREFIX}"\n{body[len(known) :]}' if known and body.startswith(known) else None


def includes_torch_first(source: str) -> bool:
    """Whether torch's headers come before anything that could change what they say."""
    for line in source.splitlines():
        if _TORCH_INCLUDE.match(line):
            return True
        if _STEERING.match(line):
            return False
    return False


def extra_headers(source: str, directories: list[str]) -> list[str]:
    """Headers that the light ones leave out and that names in `source` ask for, such as at::softmax."""
    found = []
    if "AT_DISPATCH" in source or "scalar_t" in source:
        found.append("ATen/Dispatch.h")
    for name in sorted(set(re.findall(r"\b(?:torch|at)\s*::\s*([a-z]\w*)", source))):
        if any(os.path.isfile(os.path.join(directory, "ATen", "ops", f"{name}.h")) for directory in directories):
            found.append(f"ATen/ops/{name}.h")
    return found


def only_incurable(output: bytes, path: str, names: set[str]) -> bool:
    """Whether all errors are in `path` itself, and are mere syntax or about names that are not among `names`."""
    errors = [line for line in output.decode(errors="replace").splitlines() if re.search(r"\berror(?: #\S+)?:", line)]
    for line in errors:
        found = _ERROR.fullmatch(line)
        if found is None or found[1] != path:
            return False
        unknown = _UNKNOWN_NAME.match(found[2])
        if unknown is not None:
            if (unknown[1] or unknown[2]) in names:
                return False
        elif _SYNTAX.match(found[2]) is None:
            return False
    return bool(errors)


def include_directories(arguments: list[str]) -> list[str]:
    return [path for flag, path in zip(arguments, arguments[1:], strict=False) if flag == "-isystem"]


def forced(headers: list[str]) -> list[str]:
    return [part for header in headers for part in ("-include", header)]


class Compiler:
    """`kit` is where this file lies; `tools` names the real compilers."""

    def __init__(self, kit: str) -> None:
        self._kit = kit
        with open(os.path.join(kit, "tools.json")) as handle:
            self.tools: dict[str, str] = json.load(handle)

    def compile(self, tool: str, arguments: list[str]) -> Result:
        """Raises Unknown, or anything else: nothing was done that the real compiler would not do again."""
        if "-c" not in arguments or "-o" not in arguments:
            raise Unknown("not a compilation")
        path, output = (arguments[arguments.index(flag) + 1] for flag in ("-c", "-o"))
        if not os.path.isfile(path):
            raise Unknown("no source")
        with open(path, encoding="utf-8", errors="surrogateescape") as handle:
            source = handle.read()
        known = includes_torch_first(source) and _NEEDS_FULL.search(source) is None and "-include" not in arguments
        light = known and _NEEDS_TYPES.search(source) is None
        headers = extra_headers(source, include_directories(arguments))
        if tool == "nvcc":
            tries: list[list[str]] = []
            if light:
                tries.append(["-I", os.path.join(self._kit, LIGHT), *forced([CUDA_HEADER, *headers])])
            if known:
                tries.append(["-I", os.path.join(self._kit, MEDIUM)])
            # Of pybind11 only the full headers know.
            return self._nvcc(arguments, path, output, source, [] if "PYBIND11_MODULE" in source else tries)
        if not light or not path.endswith(".cpp"):
            raise Unknown("g++ has nothing to gain")
        return self._cxx(arguments, headers, path, source)

    def _cxx(self, arguments: list[str], headers: list[str], path: str, source: str) -> Result:
        include = [os.path.join(self._kit, name) for name in (BINDING, LIGHT)]
        first = os.path.join(include[0], "torch", "extension.h")
        shadows = [part for directory in include for part in ("-I", directory)]
        command = [self.tools["g++"], *forced([first, *headers]), *shadows, *arguments]
        result = Steps(dict(os.environ, LC_ALL="C")).run(command)
        if not self._is_final("g++", result, path, source):
            raise Unknown("the light headers do not serve it")
        return result

    def _nvcc(self, arguments: list[str], path: str, output: str, source: str, tries: list[list[str]]) -> Result:
        plain = list(arguments)
        for flag in ("-MD", "-MMD"):
            if flag in plain:
                plain.remove(flag)
        depfile = None
        if "-MF" in plain:
            at = plain.index("-MF")
            depfile = plain[at + 1]
            del plain[at : at + 2]
        # Names what is in a source's anonymous namespaces, so it must differ between sources of one library.
        # load_inline's has one of this name, and its text is compared with a precompiled one.
        module_id = BLANK_MODULE_ID
        if os.path.basename(path) != "cuda.cu":
            module_id = "_kernel_env_" + hashlib.sha256("\0".join([path, source]).encode(errors="replace")).hexdigest()
        for shadows in tries:
            result = self._planned([*shadows, *plain], module_id)
            if self._is_final("nvcc", result, path, source):
                break
        else:
            result = self._planned(plain, module_id)
        if result.code == 0 and depfile is not None:
            with open(depfile, "w") as handle:
                handle.write(f"{_escape(output)}: {_escape(path)}\n")
        return result

    def _is_final(self, tool: str, result: Result, path: str, source: str) -> bool:
        """Whether a try with the light headers settles it: an object, or errors that the full ones would give too."""
        if result.code == 0:
            return _NEVER_DEFINED not in result.output
        try:
            names, macros = (self._words(name) for name in (NAMES, MACROS.format(tool)))
        except OSError:
            return False
        return macros.isdisjoint(_IDENTIFIER.findall(source)) and only_incurable(result.output, path, names)

    def _words(self, name: str) -> set[str]:
        with open(os.path.join(self._kit, name)) as handle:
            return set(handle.read().split())

    def _planned(self, arguments: list[str], module_id: str) -> Result:
        keep = tempfile.mkdtemp(prefix="nvcc-")
        try:
            plan = plan_nvcc(self.tools["nvcc"], arguments, keep)
            prefixes = os.path.join(self._kit, "prefixes")
            known = [os.path.join(prefixes, entry) for entry in sorted(os.listdir(prefixes))]
            return run_plan(plan, module_id, known)
        finally:
            shutil.rmtree(keep, ignore_errors=True)


def _escape(path: str) -> str:
    return path.replace(" ", "\\ ")


def _guarded(step: Callable[[], Result]) -> Result | None:
    try:
        return step()
    except Exception:
        return None


def main() -> NoReturn:
    tool, arguments = sys.argv[1], sys.argv[2:]
    compiler = Compiler(os.path.dirname(os.path.abspath(__file__)))
    result = _guarded(lambda: compiler.compile(tool, arguments))
    if result is None:
        real = compiler.tools[tool]
        os.execvp(real, [real, *arguments])
    sys.stderr.buffer.write(result.output)
    sys.stderr.flush()
    if result.code < 0:  # it was killed, and so whoever waits for this process has to see
        os.kill(os.getpid(), -result.code)
    sys.exit(result.code)


if __name__ == "__main__":
    main()
