"""Takes the code of NVIDIA's libraries out of a candidate's process, before a submission's code is there.

torch brings cuBLAS, cuDNN and others into every process, and a submission could call them where the dispatcher does not
see it. Their machine code and their kernels are replaced by nothing in the child that was forked for it, and their
files are hidden (view.py), so that it cannot load them again. A call ends the process.

Changes this process's memory and reads the names of files.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_NAME = re.compile(
    r"lib(cublas|cudnn|cusolver|cusparse|cufft|curand|cutensor|nccl|npp|nvblas|nvshmem|magma|torch_cuda_linalg)"
    r"\w*\.(so(\.[\d.]+)?|a)"
)
_PYTORCH = re.compile(r"/libtorch_(cpu|cuda|python)\.so$")
# Modules of torch: without the first four, nothing of torch._inductor makes code; the others are kernels in Triton.
_KERNELS_OF_TORCH = (
    "_inductor/compile_fx",
    "_inductor/graph",
    "_inductor/lowering",
    "_inductor/scheduler",
    "_native/ops/bmm_outer_product/triton_kernels",
    "sparse/_triton_ops",
)
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_PAGE = mmap.PAGESIZE
# Where compilers look for libraries beside those that torch has loaded.
_SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib")
_KERNELS = (b".nv_fatbin", b"__nv_relfatbin")
_EXECUTABLE = 0x4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


@dataclass(frozen=True)
class _Mapping:
    start: int
    end: int
    offset: int
    path: str


def is_vendor(path: str) -> bool:
    """Whether a file of this name is one of the libraries."""
    return _NAME.fullmatch(os.path.basename(path)) is not None


def mappings() -> Iterator[_Mapping]:
    """The parts of files that this process has mapped."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and fields[5].startswith("/"):
                start, end = (int(address, 16) for address in fields[0].split("-"))
                yield _Mapping(start, end, int(fields[2], 16), fields[5])


@dataclass(frozen=True)
class Range:
    """Memory to be replaced, and what may be done with it then."""

    start: int
    end: int
    protection: int


def loaded() -> tuple[Range, ...]:
    """Where the code and the kernels of the libraries lie in this process and in those that it forks.

    Not their tables of symbols, through which the dynamic linker goes whenever something else is loaded, nor what it
    takes to unwind the stack: both can lie in the same segment.
    """
    ranges = []
    sections: dict[str, list[tuple[int, int, int]]] = {}
    for found in mappings():
        if not is_vendor(found.path):
            continue
        if found.path not in sections:
            sections[found.path] = list(_sections(found.path))
        for offset, size, protection in sections[found.path]:
            # Whole pages: what shares one with something else is a few functions at most.
            begin = found.start - found.offset + offset
            first = max(found.start, -(-begin // _PAGE) * _PAGE)
            last = min(found.end, (begin + size) // _PAGE * _PAGE)
            if first < last:
                ranges.append(Range(first, last, protection))
    return tuple(ranges)


def remove(ranges: Iterable[Range]) -> None:
    """Replace code by pages that cannot be used, and kernels by zeros. There is no way back.

    Raises:
        OSError: the kernel refuses.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
    for found in ranges:
        if _libc.mmap(found.start, found.end - found.start, found.protection, flags, -1, 0) == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"mmap: {os.strerror(error)}")


def _sections(path: str) -> Iterator[tuple[int, int, int]]:
    """Offset and size in the file of what holds code for either processor, and what may be done with those pages.

    Source: the ELF-64 specification.
    """
    with open(path, "rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            return
        (table,) = struct.unpack_from("<Q", header, 0x28)
        size, count, names = struct.unpack_from("<HHH", header, 0x3A)
        file.seek(table)
        sections = [struct.unpack_from("<IIQQQQ", file.read(size)) for _ in range(count)]
        for name, _, flags, _, offset, length in sections:
            file.seek(sections[names][4] + name)
            if flags & _EXECUTABLE:
                yield offset, length, _PROT_NONE
            elif file.read(32).split(b"\0")[0] in _KERNELS:
                yield offset, length, mmap.PROT_READ


def pytorch() -> tuple[str, ...]:
    """The files of PyTorch's own libraries, all of which this process has loaded: a submission that links with none
    could only load them again, here or in a process of its own, as they were before anything was taken out."""
    return tuple(sorted({found.path for found in mappings() if _PYTORCH.search(found.path)}))


def kernels() -> tuple[str, ...]:
    """The files with which PyTorch brings kernels in Triton, or writes them for a submission."""
    found = set()
    for torch in {os.path.dirname(os.path.dirname(path)) for path in pytorch()}:
        for module in _KERNELS_OF_TORCH:
            directory, name = os.path.split(os.path.join(torch, module))
            for place in (directory, os.path.join(directory, "__pycache__")):
                with contextlib.suppress(OSError):
                    found |= {os.path.join(place, entry) for entry in os.listdir(place) if entry.split(".")[0] == name}
    return tuple(sorted(path for path in found if os.path.isfile(path)))


def files(homes: Iterable[str]) -> tuple[str, ...]:
    """Where the libraries lie: beside those that this process has loaded, in the toolkits `homes`, in the system."""
    directories = {
        os.path.dirname(found.path)
        for found in mappings()
        if is_vendor(found.path) or os.path.basename(found.path).startswith("libtorch")
    }
    for home in filter(None, homes):
        directories |= {os.path.join(home, "lib64"), os.path.join(home, "lib")}
        directories |= {os.path.join(home, "targets", machine, "lib") for machine in ("x86_64-linux", "sbsa-linux")}
    directories |= set(_SYSTEM)
    found = set()
    for directory in directories:
        try:
            entries = os.listdir(directory)
        except OSError:
            continue
        found |= {os.path.realpath(os.path.join(directory, entry)) for entry in entries if is_vendor(entry)}
    return tuple(sorted(path for path in found if os.path.isfile(path)))
