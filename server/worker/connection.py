"""The frames that carry the messages of protocol.py between processes.

A frame is a 4-byte little-endian length and a msgpack body, decoded into typed structs with msgspec: nothing is ever
unpickled. `Connection` bounds the size of what it reads and every wait has a deadline. Imports neither torch nor
openenv: the server uses this module too.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from typing import Any

import msgspec


class PeerClosed(Exception):
    """The other side closed its socket."""


class PeerViolation(Exception):
    """The other side sent something that is not a valid message."""


class DeadlineExceeded(Exception):
    """Nothing complete arrived, or could be sent, before the deadline."""


_HEADER = struct.Struct("<I")
_MAX_FDS = 4096


class Connection:
    """Length-prefixed msgpack messages over a Unix stream socket, with descriptors as ancillary data.

    `reply_types` is the union this side accepts; `limit` is the largest body in bytes. Deadlines are absolute values
    of time.monotonic().
    """

    def __init__(self, sock: socket.socket, reply_types: Any, limit: int = 8 << 20) -> None:
        self._sock = sock
        self._decoder = msgspec.msgpack.Decoder(reply_types)
        self._limit = limit
        self._buffer = bytearray()
        self.fds: list[int] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: msgspec.Struct, fds: list[int] | None = None, deadline: float | None = None) -> None:
        """Send one message.

        Raises:
            PeerClosed: the peer is gone.
            DeadlineExceeded: the peer did not read in time.
        """
        body = msgspec.msgpack.encode(message)
        frame = memoryview(_HEADER.pack(len(body)) + body)
        self._sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        try:
            if fds:
                sent = self._sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
                frame = frame[sent:]
            self._sock.sendall(frame)
        except TimeoutError as error:
            raise DeadlineExceeded from error
        except OSError as error:
            raise PeerClosed from error

    def pop(self) -> Any | None:
        """The next complete message already read, or None.

        Raises:
            PeerViolation: the bytes are not a valid message.
        """
        if len(self._buffer) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._buffer)
        if size > self._limit:
            raise PeerViolation(f"a message of {size} bytes is over the limit of {self._limit}")
        end = _HEADER.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            return self._decoder.decode(body)
        except Exception as error:  # whatever it is, these bytes cause it
            raise PeerViolation(f"{type(error).__name__}: {error}") from error

    def has_buffered(self) -> bool:
        """Whether bytes have arrived that no message has consumed, in the buffer or in the socket."""
        if self._buffer:
            return True
        self._sock.setblocking(False)
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def read(self, deadline: float | None = None, accept_fds: bool = False) -> None:
        """Read once from the socket into the buffer (the caller has polled, or wants to block).

        Raises:
            PeerClosed: end of file.
            DeadlineExceeded: nothing arrived in time.
        """
        self._sock.settimeout(None if deadline is None else max(0.0005, deadline - time.monotonic()))
        try:
            if accept_fds:
                data, ancillary, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(_MAX_FDS * 4))
                for level, kind, payload in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        received = array.array("i")
                        received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                        self.fds.extend(received)
            else:
                data = self._sock.recv(1 << 16)
        except TimeoutError as error:
            raise DeadlineExceeded from error
        except OSError as error:
            raise PeerClosed from error
        if not data:
            raise PeerClosed
        self._buffer += data

    def recv(self, deadline: float | None = None, accept_fds: bool = False) -> Any:
        """Block until one message is complete. Raises PeerClosed, PeerViolation or DeadlineExceeded."""
        while (message := self.pop()) is None:
            self.read(deadline, accept_fds)
        return message

    def take_fds(self) -> list[int]:
        """The descriptors received so far; the caller owns them."""
        taken, self.fds = self.fds, []
        return taken

    def close(self) -> None:
        for fd in self.take_fds():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._sock.close()
