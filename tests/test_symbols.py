"""Which names of C++ functions are PyTorch's computations, and that they are found in a library."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from server.worker.symbols import Extensions, computation, undefined

OPERATORS = frozenset({"_softmax", "mm", "empty_like", "clamp_min"})
SOURCE = """
namespace at { namespace cpu { int %s(int); } }
extern "C" int puts(const char*);
extern "C" int call(int x) { puts("x"); return at::cpu::%s(x); }
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZN2at6native7softmaxERKNS_6TensorEl", "a function of at::native"),
        ("_ZN2at4cuda8_softmaxERKNS_6TensorElb", "at::_softmax"),
        ("_ZN2at3cpu2mmERKNS_6TensorES3_", "at::mm"),
        ("_ZN2at3cpu6mm_outERNS_6TensorERKS1_S4_", "at::mm"),
        ("_ZN2at4cuda10empty_likeERKNS_6TensorE", None),
        ("_ZN2at4cuda26getCurrentDevicePropertiesEv", None),
        ("_ZN3c104cuda20getCurrentCUDAStreamEa", None),
        # Through the dispatcher, where it is not there.
        ("_ZN2at4_ops6matmul4callERKNS_6TensorES4_", None),
        ("_ZN3c1010Dispatcher17findSchemaOrThrowEPKcS2_", "a function of c10::Dispatcher"),
        ("_ZNK3c1014OperatorHandle12operator_nameEv", None),
        ("cudaLaunchKernel", None),
    ],
)
def test_which_names_are_computations(name: str, expected: str | None) -> None:
    assert computation(name.encode(), OPERATORS) == expected


def build(directory: Path, function: str) -> Path:
    """A library that calls this function of namespace at::cpu, which it lacks."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source, path = directory / f"{function}.cpp", directory / f"lib{function}.so"
    source.write_text(SOURCE.replace("%s", function))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def test_a_library_says_what_it_needs(tmp_path: Path) -> None:
    names = set(undefined(str(build(tmp_path, "clamp_min"))))
    assert {b"_ZN2at3cpu9clamp_minEi", b"puts"} <= names
    assert b"call" not in names


def test_only_libraries_that_were_loaded_since_are_looked_at_and_once(tmp_path: Path) -> None:
    before, harmless, other = (build(tmp_path, name) for name in ("mm", "empty_like", "clamp_min"))
    ctypes.CDLL(str(before), mode=1)
    extensions = Extensions(OPERATORS)
    assert extensions.computation() is None
    ctypes.CDLL(str(harmless), mode=1)
    assert extensions.computation() is None
    ctypes.CDLL(str(other), mode=1)
    assert extensions.computation() == "at::clamp_min"
    assert extensions.computation() is None


def test_what_is_no_library_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no library")
    assert list(undefined(str(path))) == []
    extensions = Extensions(OPERATORS)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        path.unlink()
        assert extensions.computation() is None


def test_code_whose_file_is_gone_is_not_passed_over(tmp_path: Path) -> None:
    extensions = Extensions(OPERATORS)
    library = build(tmp_path, "clamp_min")
    ctypes.CDLL(str(library), mode=1)
    library.unlink()
    assert extensions.computation() == "something in a library that cannot be read"
