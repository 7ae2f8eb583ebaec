"""Takes functions of PyTorch's libraries out of a candidate's process that compute on the device without the
dispatcher, before a submission's code is there.

An operator's C++ functions with static dispatch, the C functions over them that compiled models call, and the compilers
and runtimes behind TorchScript are exported: a submission could call them through ctypes. The dispatcher reaches its
kernels without them. Their machine code is overwritten in the child that was forked for a submission; a call ends the
process.

Changes this process's memory and reads the libraries' files.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterable, Iterator

from server.worker.libraries import Range, mappings
from server.worker.symbols import functions

_LIBRARIES = re.compile(r"libtorch_(cpu|cuda)\.so")
_C_FUNCTION = re.compile(rb"aoti_torch_(cpu|cuda)_(\w+)")
_STATIC = re.compile(rb"_ZN2at\d(cpu|cuda)(\d+)(\w+)")
_COMPILER = re.compile(rb"_ZNK?5torch(3jit(10tensorexpr|5fuser|12StaticModule|13StaticRuntime)|8nativert)")
# at::native::OPERATOR_cuda and its like, on CUDA alone: on the CPU they are what `__init__` may compute with.
_NATIVE = re.compile(rb"_ZNK?2at6native(\d+)(\w+)")
_DECORATIONS = re.compile(r"^structured_|_(out_cuda|cuda_out|cuda_|cuda)$")
_TRAP = 0xCC  # a breakpoint of x86; on ARM, four of them are an instruction that does not exist
_PAGE = mmap.PAGESIZE
_PROT_CODE = mmap.PROT_READ | mmap.PROT_EXEC
_MOVE_THERE = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def withdrawn(names: Iterable[str], kept: Iterable[str]) -> frozenset[str]:
    """The operators that are taken away, by their bare names less underscores at the ends: `names` are all there are,
    with namespace and overload, `kept` the bare ones of those that stay."""
    bare = (name.partition("::")[2].partition(".")[0] for name in names)
    return frozenset(name.strip("_") for name in bare) - {name.strip("_") for name in kept}


def computes(name: bytes, device: str, operators: frozenset[str]) -> bool:
    """Whether an exported function computes on a device of this type ("cpu", "cuda") without the dispatcher.

    `operators`: those that are taken away.
    """
    if _COMPILER.match(name) is not None:
        return True
    if (found := _C_FUNCTION.fullmatch(name)) is not None:
        words = found[2].decode().strip("_").split("_")
        # With the name of the overload after it, or without.
        return found[1].decode() == device and any(
            "_".join(words[:end]) in operators for end in range(1, len(words) + 1)
        )
    if (found := _STATIC.match(name)) is not None and found[1].decode() == device:
        operator = found[3][: int(found[2])].decode(errors="replace").removesuffix("_symint")
        return operator.removesuffix("_outf").removesuffix("_out").strip("_") in operators
    if device == "cuda" and (found := _NATIVE.match(name)) is not None:
        operator = found[2][: int(found[1])].decode(errors="replace")
        bare = _DECORATIONS.sub("", _DECORATIONS.sub("", operator))
        return bare != operator and bare.strip("_") in operators
    return False


def loaded(device: str, operators: frozenset[str]) -> tuple[Range, ...]:
    """Where such functions lie in this process and in those that it forks.

    Raises:
        OSError, ValueError, struct.error: a library cannot be read.
    """
    found: set[Range] = set()
    for path, base in _bases():
        for name, offset, size in functions(path):
            # What libtorch_cpu.so has of them serves both devices, and `__init__` computes on the CPU.
            if _NATIVE.match(name) is not None and not path.endswith("libtorch_cuda.so"):
                continue
            if computes(name, device, operators):
                found.add(Range(base + offset, base + offset + size, _PROT_CODE))
    return tuple(sorted(found, key=lambda one: one.start))


def remove(ranges: Iterable[Range]) -> None:
    """Overwrite them. There is no way back.

    Raises:
        OSError: the kernel refuses.
    """
    # In memory of its own: what is changed on pages of a file comes back with madvise(MADV_DONTNEED).
    for first, last, inside in _runs(ranges):
        size = last - first
        copy = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        _check("mmap", copy != _FAILED)
        ctypes.memmove(copy, first, size)
        for found in inside:
            ctypes.memset(copy + found.start - first, _TRAP, found.end - found.start)
        _check("mprotect", _libc.mprotect(copy, size, _PROT_CODE) == 0)
        _check("mremap", _libc.mremap(copy, size, size, _MOVE_THERE, first) == first)


def _bases() -> Iterator[tuple[str, int]]:
    """PyTorch's libraries in this process, and the address at which the file's first byte is."""
    seen = set()
    for found in mappings():
        if found.offset == 0 and found.path not in seen and _LIBRARIES.fullmatch(os.path.basename(found.path)):
            seen.add(found.path)
            yield found.path, found.start


def _runs(ranges: Iterable[Range]) -> Iterator[tuple[int, int, list[Range]]]:
    """Whole pages, and the ranges on them: as few calls of the kernel as there are gaps."""
    first = last = 0
    inside: list[Range] = []
    for found in ranges:
        begin, end = found.start // _PAGE * _PAGE, -(-found.end // _PAGE) * _PAGE
        if inside and begin > last:
            yield first, last, inside
            inside = []
        first, last = (begin, end) if not inside else (first, max(last, end))
        inside.append(found)
    if inside:
        yield first, last, inside


def _check(call: str, succeeded: bool) -> None:
    if not succeeded:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
