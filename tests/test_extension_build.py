"""The kit that compiles load_inline's sources faster: what it may skip, and that it falls back to the full way."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from server.worker import extension_build, extension_compile, extension_kit
from server.worker.extension_compile import MACROS, NAMES, Unknown
from server.worker.extension_names import declared, macros

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ("#include <torch/extension.h>\n", True),
        ("// ours\n#include <vector>\n#define BLOCK 256\n#include <torch/types.h>\n", True),
        ("#define TORCH_ASSERT_NO_OPERATORS\n#include <torch/extension.h>\n", False),
        ("#undef NDEBUG\n#include <torch/extension.h>\n", False),
        ("#include <pybind11/pybind11.h>\n", False),
    ],
)
def test_torch_first(source: str, first: bool) -> None:
    assert extension_compile.includes_torch_first(source) is first


def test_extra_headers_are_the_operators_that_are_named_and_exist(tmp_path: Path) -> None:
    operators = tmp_path / "ATen" / "ops"
    operators.mkdir(parents=True)
    for name in ("softmax", "sum", "mm"):
        (operators / f"{name}.h").touch()
    source = "auto y = torch::softmax(x, 1); auto z = at :: sum(y); torch::Tensor t; AT_DISPATCH_ALL_TYPES();"
    found = extension_compile.extra_headers(source, [str(tmp_path)])
    assert found == ["ATen/Dispatch.h", "ATen/ops/softmax.h", "ATen/ops/sum.h"]


def test_a_prefix_is_cut_only_where_all_of_it_is_there(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix.h"
    prefix.write_text("int a;\nint b;")
    assert extension_compile.cut_prefix('# 1 "x.cu"\nint a;\nint b;\nint c;\n', str(prefix)) == (
        '#include "prefix.h"\n\nint c;\n'
    )
    assert extension_compile.cut_prefix('# 1 "x.cu"\nint a;\nint c;\n', str(prefix)) is None
    assert extension_compile.cut_prefix("# 1\nint a;\n", str(tmp_path / "missing.h")) is None


@pytest.mark.parametrize(
    "commands",
    [
        [["gcc", "-c", "x.cpp"]],
        [["cudafe++"], ["cicc"], ["nvlink"], ["gcc", "-c", "x"]],
        [["cudafe++", "--device-c"], ["cicc"], ["gcc", "-c", "x"]],
        [["cudafe++"], ["cicc"], ["gcc", "-E", "x"]],
    ],
)
def test_other_work_of_nvcc_is_left_to_it(commands: list[list[str]]) -> None:
    with pytest.raises(Unknown):
        extension_compile.sort_commands(commands, {})


def test_commands_are_recorded_without_files_and_names() -> None:
    arguments = ["-MMD", "-MF", "m.d", "-DTORCH_EXTENSION_NAME=x", "-O2", "-c", "m.cpp", "-o", "m.o", "-fPIC"]
    assert extension_build._flags(arguments) == ["-O2", "-fPIC"]


@pytest.mark.parametrize(
    ("source", "types", "full"),
    [
        ("x.options().requires_grad(false)", False, False),
        ("if (x.requires_grad()) {}", False, False),
        ("x.set_requires_grad(true)", False, False),
        ("torch::empty(n, at::TensorOptions().requires_grad(true))", True, False),
        ("torch::nn::Linear layer", False, True),
        ("int x; // torch", False, False),
    ],
)
def test_what_the_light_headers_lack(source: str, types: bool, full: bool) -> None:
    assert (extension_compile._NEEDS_TYPES.search(source) is not None) is types
    assert (extension_compile._NEEDS_FULL.search(source) is not None) is full


_HEADER = """
# 1 "a.h" 1
#define LIMIT 3
namespace at { struct Tensor { int member; }; enum Kind { kFirst = one + 2, kSecond };
inline Tensor relu(const Tensor& parameter, int number = 3) { int local; return parameter; } }
extern "C" { int in_c(int); }
extern int (*pointer)(int inner);
enum class Scoped { Hidden };
template <typename Type, int count = 3> using Alias = other<count>;
struct Holder { friend void hidden_friend(Holder held); };
static const char* text = "in_a_string";
Holder::Holder(int v) : initialised(v) {}
namespace attr { constexpr int symbol = 1; }
"""


def test_names_that_headers_declare() -> None:
    found = declared(_HEADER)
    assert found >= {"at", "Tensor", "Kind", "kFirst", "kSecond", "relu", "in_c", "Scoped", "Alias", "hidden_friend"}
    assert found >= {"Holder", "text"}
    assert found.isdisjoint({"member", "parameter", "number", "local", "one", "Hidden", "count", "other", "held"})
    assert found.isdisjoint({"in_a_string", "initialised", "symbol", "LIMIT"})
    assert macros(_HEADER) == {"LIMIT"}


@pytest.mark.parametrize(
    ("lines", "incurable"),
    [
        (['a.cu(3): error: identifier "y" is undefined', "    y;", "    ^"], True),
        (['a.cu(3): error: identifier "y" is undefined', "a.cu(4): error: type name is not allowed"], True),
        (['a.cu(3): error #29-D: expected a ";"', '1 error detected in the compilation of "a.cu".'], True),
        (['a.cu(3): error: class "at::Tensor" has no member "sise"'], True),
        (["a.cu:3:7: error: 'y' was not declared in this scope; did you mean 'z'?"], True),
        (["a.cu:3:7: error: \u2018y\u2019 was not declared in this scope"], True),
        (['a.cu(3): error: identifier "known" is undefined'], False),
        (["a.cu:3:7: error: 'known' was not declared in this scope"], False),
        (['a.cu(3): error: expected a ";"', 'a.cu(3): error: identifier "known" is undefined'], False),
        (['a.cu(3): error: namespace "at" has no member "y"'], False),
        (['a.cu(3): error: no operator "<<" matches these operands'], False),
        (['a.cu(3): error: incomplete type "at::Generator" is not allowed'], False),
        (['b.h(3): error: expected a ";"'], False),
        (["nvcc fatal   : out of disk"], False),
    ],
)
def test_errors_that_more_headers_do_not_cure(lines: list[str], incurable: bool) -> None:
    output = "\n".join(lines).encode()
    assert extension_compile.only_incurable(output, "a.cu", {"known"}) is incurable


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit whose light headers know `struct Small`, whose medium ones `Large` too, and whose full ones `Huge`."""
    directory = tmp_path / "kit"
    tools = {tool: path for tool in ("g++", "nvcc") if (path := shutil.which(tool)) is not None}
    extension_build._write_files(directory, tools)
    full = tmp_path / "full" / "torch"
    full.mkdir(parents=True)
    small, large = "#pragma once\nstruct Small {};\n", "#define FULL 1\nstruct Large {};\n"
    (full / "extension.h").write_text(f"{small + large}struct Huge {{}};\n")
    (full / "types.h").write_text(small + large)
    (directory / "light" / "torch" / "types.h").write_text(small)
    (directory / "binding" / "torch" / "extension.h").write_text(small)
    return directory


def _compile(
    kit: Path, tool: str, source: str, *flags: str, name: str = ""
) -> tuple[subprocess.CompletedProcess[str], Path]:
    work = kit.parent / "work"
    work.mkdir(exist_ok=True)
    path = work / (name or ("cuda.cu" if tool == "nvcc" else "main.cpp"))
    path.write_text(source)
    output = path.with_suffix(".o")
    output.unlink(missing_ok=True)
    include = ["-isystem", str(kit.parent / "full")]
    command = [str(kit / "bin" / tool), *include, *flags, "-c", str(path), "-o", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False), output


def _plain(kit: Path, tool: str) -> subprocess.CompletedProcess[str]:
    tools = json.loads((kit / "tools.json").read_text())
    path = kit.parent / "work" / ("cuda.cu" if tool == "nvcc" else "main.cpp")
    include = ["-isystem", str(kit.parent / "full")]
    command = [tools[tool], *include, "-c", str(path), "-o", str(path.with_suffix(".o"))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


_TOOLS = [pytest.param("g++", marks=needs_gxx), pytest.param("nvcc", marks=[needs_gxx, needs_nvcc])]
_BEGIN = "#include <torch/extension.h>\n"


@pytest.mark.parametrize("tool", _TOOLS)
def test_the_light_headers_serve_what_they_can(kit: Path, tool: str) -> None:
    answer, output = _compile(
        kit, tool, f"{_BEGIN}#ifdef FULL\n#error full headers\n#endif\nSmall f() {{ return {{}}; }}\n"
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert output.stat().st_size > 0


@pytest.mark.parametrize("tool", _TOOLS)
@pytest.mark.parametrize("name", ["Large", "Huge"])
def test_the_full_headers_serve_the_rest(kit: Path, tool: str, name: str) -> None:
    answer, output = _compile(kit, tool, f"{_BEGIN}{name} f() {{ return {{}}; }}\n")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert output.stat().st_size > 0


@pytest.mark.parametrize("tool", _TOOLS)
def test_a_wrong_source_gets_the_plain_compilers_words(kit: Path, tool: str) -> None:
    answer, output = _compile(kit, tool, f"{_BEGIN}Missing f() {{ return {{}}; }}\n")
    plain = _plain(kit, tool)
    assert answer.returncode == plain.returncode != 0
    assert answer.stdout + answer.stderr == plain.stdout + plain.stderr
    assert "Missing" in answer.stderr
    assert not output.exists()


@needs_gxx
@needs_nvcc
def test_device_code_is_the_same(kit: Path) -> None:
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\nvoid f(float* x) { twice<<<1, 32>>>(x); }\n"
    answer, output = _compile(kit, "nvcc", source, "-MD", "-MF", str(kit.parent / "out.d"), "-O3")
    assert answer.returncode == 0, answer.stderr
    assert (kit.parent / "out.d").read_text() == f"{output}: {output.with_suffix('.cu')}\n"
    kernels = subprocess.run(["nm", "-C", output], capture_output=True, text=True, check=True).stdout
    assert "T twice(float*)" in kernels
    assert b".nv_fatbin" in output.read_bytes()


@needs_gxx
@needs_nvcc
def test_a_device_error_gets_nvccs_words(kit: Path) -> None:
    body = "__shared__ float x[1 << 20]; x[threadIdx.x] = *y; __syncthreads(); *y = x[threadIdx.x ^ 1];"
    source = f"{_BEGIN}__global__ void big(float* y) {{ {body} }}\n"
    answer, _ = _compile(kit, "nvcc", source)
    plain = _plain(kit, "nvcc")
    assert answer.returncode == plain.returncode != 0
    assert "shared" in answer.stderr and answer.stderr.count("\n") == plain.stderr.count("\n")


@needs_gxx
def test_everything_else_is_the_real_compilers(kit: Path) -> None:
    answer = subprocess.run([kit / "bin" / "g++", "--version"], capture_output=True, text=True, check=True)
    real = subprocess.run(
        [json.loads((kit / "tools.json").read_text())["g++"], "--version"], capture_output=True, text=True
    )
    assert answer.stdout == real.stdout
    (kit / "tools.json").write_text(json.dumps({"g++": sys.executable}))
    odd = subprocess.run([kit / "bin" / "g++", "-c", "print(7)"], capture_output=True, text=True, check=True)
    assert odd.stdout == "7\n"


@needs_gxx
def test_inline_functions_without_a_body_count_as_failure(kit: Path) -> None:
    (kit / "binding" / "torch" / "extension.h").write_text("#pragma once\ninline int f();\n")
    (kit.parent / "full" / "torch" / "extension.h").write_text("#pragma once\ninline int f() { return 3; }\n")
    answer, output = _compile(kit, "g++", f"{_BEGIN}int g() {{ return f(); }}\n")
    assert (answer.returncode, answer.stderr) == (0, "")
    undefined = subprocess.run(["nm", "-u", output], capture_output=True, text=True, check=True).stdout
    assert "1fv" not in undefined


@needs_gxx
def test_load_inline_is_watched_without_building(tmp_path: Path) -> None:
    cxx = shutil.which("g++")
    assert cxx is not None
    recorded = extension_build.record_commands({"g++": cxx})
    assert "-fPIC" in recorded["g++"]
    assert any(path.endswith("torch/include") for path in extension_compile.include_directories(recorded["g++"]))


@pytest.mark.parametrize("tool", _TOOLS)
@pytest.mark.parametrize(
    ("names", "full"), [("Other", False), ("Other Missing", True), (None, True)], ids=["unknown", "known", "no_list"]
)
def test_a_wrong_source_that_no_header_cures_is_tried_once(kit: Path, tool: str, names: str | None, full: bool) -> None:
    (kit.parent / "full" / "torch" / "extension.h").write_text("#error full headers\n")
    if names is not None:
        (kit / NAMES).write_text(names.replace(" ", "\n"))
        (kit / MACROS.format(tool)).write_text("LARGE")
    answer, output = _compile(kit, tool, f"{_BEGIN}int f() {{ return Missing; }}\n")
    assert answer.returncode != 0 and not output.exists()
    assert ("full headers" in answer.stderr) is full
    assert "Missing" in answer.stderr or full
    if names is not None:
        answer, _ = _compile(kit, tool, f"{_BEGIN}int f() {{ return Missing LARGE; }}\n")
        assert "full headers" in answer.stderr


@pytest.mark.parametrize("tool", _TOOLS)
@pytest.mark.parametrize("steering", ["#define TORCH_OURS\n", "-include"])
def test_who_steers_the_headers_gets_the_full_ones(kit: Path, tool: str, steering: str) -> None:
    steer = kit.parent / "steer.h"
    steer.write_text("#define OURS\n")
    flags = ["-include", str(steer)] if steering == "-include" else []
    source = f"{'' if flags else steering}{_BEGIN}#ifdef FULL\nvoid full_ones() {{}}\n#endif\n"
    answer, output = _compile(kit, tool, source, *flags)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "T full_ones()" in _symbols(output)


def _symbols(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    # What nvcc derives from the source's name and content differs.
    return {
        re.sub(r"\d*_GLOBAL__N__\w+|[0-9a-f]{8,}\S*|_kernel_env_\w+", "*", line[17:]) for line in listed.splitlines()
    }


@needs_gxx
@needs_nvcc
def test_sources_of_one_library_with_the_same_hidden_names(kit: Path) -> None:
    objects = []
    for name, function in (("cuda.cu", "f"), ("second.cu", "g")):
        source = (
            f"{_BEGIN}namespace {{ __global__ void same(float* x) {{ *x = SCALE; }} }}\n"
            f"void {function}(float* x) {{ same<<<1, 1>>>(x); }}\n"
        )
        flags = ("-O3", "--use_fast_math", "-DSCALE=2")
        answer, output = _compile(kit, "nvcc", source, *flags, name=name)
        assert (answer.returncode, answer.stderr) == (0, "")
        objects.append(output)
        plain = output.with_suffix(".plain.o")
        real = json.loads((kit / "tools.json").read_text())["nvcc"]
        command = [real, "-isystem", kit.parent / "full", *flags, "-c", output.with_suffix(".cu"), "-o", plain]
        subprocess.run(command, check=True)
        assert _symbols(plain) == _symbols(output)
    library = objects[0].with_suffix(".so")
    subprocess.run(["g++", "-shared", *objects, "-o", library], check=True)
    assert {"T f(float*)", "T g(float*)"} <= _symbols(library)


@needs_gxx
def test_a_kit_that_was_begun_is_finished_and_what_is_there_kept(kit: Path) -> None:
    scratch = kit.parent / "scratch"
    scratch.mkdir()
    command = [json.loads((kit / "tools.json").read_text())["g++"]]
    extension_build._precompile_binding(kit, scratch, command, "O0")
    program = kit / "bin" / "g++"
    program.write_text("half a pro")
    before = {path: path.stat().st_mtime_ns for path in kit.rglob("*") if path.is_file()}
    extension_build._precompile_binding(kit, scratch, command, "O0")
    (kit / "light" / "torch" / "types.h").write_text("half a hea")
    extension_build._write_files(kit, json.loads((kit / "tools.json").read_text()))
    after = {path: path.stat().st_mtime_ns for path in kit.rglob("*") if path.is_file()}
    changed = {str(path.relative_to(kit)) for path in after if after[path] != before.get(path)}
    assert changed == {"bin/g++", "light/torch/types.h", "binding/torch/extension.h"}
    assert program.read_text().startswith("#!/bin/sh") and os.access(program, os.X_OK)


_SCALE = """
#include <torch/extension.h>
torch::Tensor scale(torch::Tensor x, double by, bool bias = false);
std::string headers() {
#ifdef TORCH_MODULE
  return "full";
#else
  return "light";
#endif
}
"""
_SCALE_BODY = """
#include <torch/types.h>
torch::Tensor scale(torch::Tensor x, double by, bool bias) {
  TORCH_CHECK(x.dim() == 2, "two dimensions, not ", x.dim());
  auto y = torch::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = x.data_ptr<float>()[i] * by + (bias ? 1 : 0);
  return y;
}
"""
_LOAD = """
import json, sys, torch
from torch.utils.cpp_extension import load_inline
directory, first, second = sys.argv[1:]
inline = load_inline("ours", cpp_sources=[first, second], functions=["scale", "headers"], build_directory=directory,
                     extra_cflags=["-DUNUSED=1"])
x = torch.arange(6.0).reshape(2, 3)
try:
    inline.scale(x[0], 2.0, False)
    error = ""
except RuntimeError as failure:
    error = str(failure)
print(json.dumps([inline.scale(x, 2.0, True).tolist(), inline.headers(), error]))
"""


@needs_gxx
def test_load_inline_with_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's real headers. Without a CUDA build of torch the kit is g++'s alone."""
    monkeypatch.setattr(extension_build, "_OPTIMISATIONS", {"O0": []})
    monkeypatch.setattr(extension_build, "_tools", lambda: {"g++": shutil.which("g++")})
    kit, build = tmp_path / "kit", tmp_path / "build"
    kit.mkdir()
    build.mkdir()
    extension_build.prepare(kit)
    environment = {**os.environ, **extension_kit.compilers(str(kit))}
    assert environment["CXX"] == str(kit / "bin" / "g++")
    answer = subprocess.run(
        [sys.executable, "-c", _LOAD, str(build), _SCALE, _SCALE_BODY], env=environment, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    values, headers, error = json.loads(answer.stdout.splitlines()[-1])
    assert values == [[1.0, 3.0, 5.0], [7.0, 9.0, 11.0]]
    assert headers == "light"
    assert "two dimensions, not 1" in error
