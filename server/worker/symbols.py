"""Which of PyTorch's computations a submission's extension calls by their C++ names, below the dispatcher.

Runs in the candidate, like the guard, and is believed as little. Reads files that this process has mapped.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterator
from typing import BinaryIO

from server.worker.guard import ALLOWED

# at::native::anything, and at::cuda::OPERATOR or at::cpu::OPERATOR, which dispatch statically; as g++ mangles them.
_NATIVE = re.compile(rb"_ZN[K]?2at6native")
_STATIC = re.compile(rb"_ZN2at(?:4cuda|3cpu|26compositeexplicitautograd|26compositeimplicitautograd)(\d+)(\w+)")
# What calls an operator by at::OPERATOR or torch::Library needs none of them; they lead to the kernels that were there.
_TABLES = re.compile(rb"_ZNK?3c10(10Dispatcher|4impl13OperatorEntry)")
_SUFFIXES = ("_symint", "_outf", "_out")
_DYNAMIC_SYMBOLS = 11
_SYMBOL_BYTES = 24
_FUNCTION = 2
_MAX_TABLE_BYTES = 64 << 20


def undefined(path: str) -> Iterator[bytes]:
    """The names that a shared library takes from others.

    Raises:
        OSError, ValueError, struct.error: it cannot be read.
    """
    return (name for name, _, section, _, _ in _symbols(path) if section == 0)


def functions(path: str) -> Iterator[tuple[bytes, int, int]]:
    """The functions that a shared library gives to others: name, address and size in bytes.

    Raises:
        OSError, ValueError, struct.error: it cannot be read.
    """
    for name, info, section, address, size in _symbols(path):
        if section != 0 and info & 0xF == _FUNCTION and size:
            yield name, address, size


def _symbols(path: str) -> Iterator[tuple[bytes, int, int, int, int]]:
    """Name, type and binding, section, address and size of each dynamic symbol. Source: the ELF-64 specification."""
    with open(path, "rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            return
        (table,) = struct.unpack_from("<Q", header, 0x28)
        size, count = struct.unpack_from("<HH", header, 0x3A)
        file.seek(table)
        sections = [struct.unpack_from("<IIQQQQI", file.read(size)) for _ in range(count)]
        for _, kind, _, _, offset, length, link in sections:
            if kind != _DYNAMIC_SYMBOLS:
                continue
            names = _read(file, sections[link][4], sections[link][5])
            symbols = _read(file, offset, length)
            for start in range(0, len(symbols) - _SYMBOL_BYTES + 1, _SYMBOL_BYTES):
                name, info, _, section, address, size = struct.unpack_from("<IBBHQQ", symbols, start)
                if name:
                    yield names[name : names.index(b"\0", name)], info, section, address, size


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    if length > _MAX_TABLE_BYTES:
        raise ValueError("a table is too long")
    file.seek(offset)
    return file.read(length)


def computation(name: bytes, operators: frozenset[str]) -> str | None:
    """The PyTorch computation that a mangled name is, None for anything else. `operators`: their names, bare."""
    if _NATIVE.match(name):
        return "a function of at::native"
    if _TABLES.match(name):
        return "a function of c10::Dispatcher"
    if (found := _STATIC.match(name)) is None:
        return None
    operator = found[2][: int(found[1])].decode(errors="replace")
    for suffix in _SUFFIXES:
        operator = operator.removesuffix(suffix)
    return f"at::{operator}" if operator in operators and operator not in ALLOWED else None


def _mapped() -> dict[str, bool]:
    """The files in this process's memory, and whether any of it can be run."""
    found: dict[str, bool] = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and fields[5].startswith("/"):
                found[fields[5]] = found.get(fields[5], False) or "x" in fields[1]
    return found


class Extensions:
    """The libraries of its own that this process maps from now on: neither the system's nor those of Python's own
    installation. `operators` are PyTorch's, by their bare names."""

    def __init__(self, operators: frozenset[str]) -> None:
        self._operators = operators
        self._installed = tuple(os.path.join(os.path.realpath(path), "") for path in (sys.prefix, sys.base_prefix))
        self._seen = set(_mapped())

    def computation(self) -> str | None:
        """The first PyTorch computation that one which was not looked at before calls by name."""
        mapped = _mapped()
        new = sorted(mapped.keys() - self._seen)
        self._seen.update(new)
        for path in new:
            if path.startswith(self._installed):
                continue
            try:
                if os.stat(path).st_uid != os.getuid():
                    continue
                found = next(filter(None, (computation(name, self._operators) for name in undefined(path))), None)
            except (OSError, ValueError, struct.error):
                # Such as a file that was removed. Of code in it nobody can say what it calls.
                if mapped[path]:
                    return "something in a library that cannot be read"
                continue
            if found is not None:
                return found
        return None
