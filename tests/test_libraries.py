"""NVIDIA's libraries in a candidate: their code and kernels are gone, and so are their files."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("needs Linux", allow_module_level=True)

from server.worker import libraries
from tests.sandbox_hosts import CONTAINER, FULL, UNPRIVILEGED, Host, HostKind, start

SOURCE = """
__attribute__((section(".nv_fatbin"), aligned(4096))) const char kernels[65536] = {1, 2, 3};
const char* where(void) { return kernels; }
%s
int answer(void) { return 42; }
%s
"""
# So that the middle of the code is pages away from its ends.
FILLING = ["\n".join(f"int {half}{number}(void) {{ return {number}; }}" for number in range(1000)) for half in "ab"]
CODE = b"\x01\x02\x03"


def build(directory: Path, name: str) -> Path:
    """A library that looks like one of NVIDIA's."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    directory.mkdir(parents=True, exist_ok=True)
    source, path = directory / "source.c", directory / name
    source.write_text(SOURCE % tuple(FILLING))
    subprocess.run(["gcc", "-shared", "-fPIC", "-fno-toplevel-reorder", "-o", path, source], check=True)
    return path


def in_child(use: Callable[[], int]) -> int:
    """What `use` returns in a forked child; minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        faulthandler.disable()
        try:
            code = use()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("libcublas.so.13", "libcublasLt.so.13.1.0", "libcudnn_ops.so.9", "libcublas.so")),
        *(
            (name, True)
            for name in ("libcublas_static.a", "libtorch_cuda_linalg.so", "libnccl.so.2", "libcufftw.so.12")
        ),
        *(
            (name, False)
            for name in ("libcuda.so.1", "libcudart.so.13", "libnvrtc.so.13", "libcupti.so.13", "libc.so.6")
        ),
        *((name, False) for name in ("libtorch_cuda.so", "libc10_cuda.so", "libcublas.py", "mylibcublas.so")),
    ],
)
def test_which_libraries_are_taken_away(name: str, expected: bool) -> None:
    assert libraries.is_vendor(f"/some/where/{name}") is expected


def test_code_and_kernels_are_gone_in_the_child_alone(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build(tmp_path, "libcublas.so.99")))
    library.where.restype = ctypes.c_void_p
    address = library.where()
    ranges = libraries.loaded()

    def call() -> int:
        libraries.remove(ranges)
        return library.answer()

    def read() -> int:
        libraries.remove(ranges)
        ctypes.CDLL("libm.so.6").abs(1)  # others can still be loaded
        return sum(ctypes.string_at(address, 65536))

    assert in_child(lambda: library.answer()) == 42
    assert in_child(call) == -signal.SIGSEGV
    assert in_child(read) == 0
    assert library.answer() == 42 and ctypes.string_at(address, 3) == CODE


READ = """
with open(path, "rb") as file:
    result = len(file.read())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("kind", [FULL, CONTAINER, UNPRIVILEGED], ids=lambda kind: kind.name)
def test_a_submission_cannot_read_their_files(kind: HostKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(kind)  # skips where this machine cannot stand in for it
    path = build(tmp_path / "lib64", "libcublas.so.99")
    other = build(tmp_path / "lib64", "libother.so.1")
    for directory in (tmp_path, *tmp_path.parents):
        if not directory.stat().st_mode & 0o001:  # pytest's are closed to others
            directory.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    host = Host(kind)
    try:
        size = path.stat().st_size
        assert host.run(READ, path=str(path)) in (None, 0)
        assert host.run(READ, path=str(other)) == other.stat().st_size
        assert host.run(READ, path=str(path), trusted=True) == size
    finally:
        host.zygote.close()
