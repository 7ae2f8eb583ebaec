"""Frames between processes: what a hostile or broken peer can send, and what becomes of descriptors."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest
from conftest import WAIT_S
from hypothesis import given
from hypothesis import strategies as st

from server.worker.connection import Connection, DeadlineExceeded, PeerClosed, PeerViolation
from server.worker.protocol import CandidateReply, CandidateRequest, Construct, Failed, Load, Loaded, OutputMeta, Ran

LIMIT = 1 << 16


class Pair:
    """A connection under test and the raw socket of its peer."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection = Connection(ours, CandidateReply, LIMIT)

    def close(self) -> None:
        """Both ends."""
        self.connection.close()
        self.peer.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected ends."""
    made = Pair()
    yield made
    made.close()


def soon() -> float:
    """A deadline that a passing test does not reach."""
    return time.monotonic() + WAIT_S


def frame(message: msgspec.Struct) -> bytes:
    """The bytes of one message."""
    body = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(body)) + body


RAN = Ran(7, 1.5, 0.5, msgspec.Raw(msgspec.msgpack.encode(["x", 0])), [OutputMeta([2, 3], [3, 1], "float32")])


def test_messages_arrive_in_order_and_whole(pair: Pair) -> None:
    pair.peer.sendall(frame(Loaded()) + frame(RAN) + frame(Failed("crashed", "why")))
    assert pair.connection.recv(soon()) == Loaded()
    assert pair.connection.recv(soon()) == RAN
    assert pair.connection.recv(soon()) == Failed("crashed", "why")
    assert pair.connection.pop() is None


def test_a_message_in_single_bytes(pair: Pair) -> None:
    data = frame(RAN)
    for value in data[:-1]:
        pair.peer.sendall(bytes([value]))
        pair.connection.read(soon())
        assert pair.connection.pop() is None
        assert pair.connection.has_buffered()
    pair.peer.sendall(data[-1:])
    assert pair.connection.recv(soon()) == RAN
    assert not pair.connection.has_buffered()


def test_a_message_larger_than_the_sockets_buffer(pair: Pair) -> None:
    big = Failed("crashed", "x" * (LIMIT - 100))
    other = Connection(pair.peer, CandidateRequest)
    sender = threading.Thread(target=other.send, args=(big,))
    sender.start()
    assert pair.connection.recv(soon()) == big
    sender.join(WAIT_S)


def test_an_oversized_frame_is_refused_before_its_body_is_read(pair: Pair) -> None:
    pair.peer.sendall(struct.pack("<I", LIMIT + 1))
    with pytest.raises(PeerViolation, match=str(LIMIT + 1)):
        pair.connection.recv(soon())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",  # msgpack's only unused byte
        b"\x93" * 5000,  # deep nesting
        msgspec.msgpack.encode({"type": "no_such_message"}),
        msgspec.msgpack.encode({"type": "load", "path": "x", "class_name": "M", "guard": False}),  # the other direction
        msgspec.msgpack.encode({"type": "ran", "call": "one", "elapsed_ms": 1.0, "spec": [], "outputs": []}),
        msgspec.msgpack.encode({"type": "ran", "call": 1}),
        msgspec.msgpack.encode(Loaded()) + b"\x00",
        b"\x82\xa4type\xa6failed\xa7outcome\xa2\xff\xfe",  # not UTF-8
    ],
    ids=["empty", "unused byte", "nested", "unknown", "wrong way", "wrong type", "missing field", "trailing", "utf-8"],
)
def test_a_frame_that_is_no_valid_message_is_a_violation(pair: Pair, body: bytes) -> None:
    pair.peer.sendall(struct.pack("<I", len(body)) + body)
    with pytest.raises(PeerViolation):
        pair.connection.recv(soon())


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("too large"), SystemError("in the decoder")])
def test_whatever_reading_a_message_raises_is_its_senders_violation(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def decode(body: bytes) -> None:
        raise error

    monkeypatch.setattr(pair.connection, "_decoder", SimpleNamespace(decode=decode))
    pair.peer.sendall(frame(Loaded()))
    with pytest.raises(PeerViolation, match=type(error).__name__):
        pair.connection.recv(soon())


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_a_violation_or_not_enough(data: bytes) -> None:
    made = Pair()
    try:
        made.peer.sendall(data)
        made.peer.close()
        with pytest.raises((PeerViolation, PeerClosed)):
            while True:
                assert isinstance(made.connection.recv(soon()), CandidateReply)
    finally:
        made.close()


def test_a_silent_peer_costs_no_more_than_the_deadline(pair: Pair) -> None:
    pair.peer.sendall(frame(RAN)[:-1])
    with pytest.raises(DeadlineExceeded):
        pair.connection.recv(time.monotonic() + 0.05)


def test_a_peer_that_does_not_read_costs_no_more_than_the_deadline(pair: Pair) -> None:
    with pytest.raises(DeadlineExceeded):
        for _ in range(1000):
            pair.connection.send(Failed("crashed", "x" * 60000), deadline=time.monotonic() + 0.05)


def test_a_peer_that_is_gone(pair: Pair) -> None:
    pair.peer.sendall(frame(Loaded()) + frame(RAN)[:-1])
    pair.peer.close()
    assert pair.connection.recv(soon()) == Loaded()
    with pytest.raises(PeerClosed):
        pair.connection.recv(soon())
    with pytest.raises(PeerClosed):
        pair.connection.send(Loaded(), deadline=soon())


def test_has_buffered_sees_what_was_not_read_yet(pair: Pair) -> None:
    assert not pair.connection.has_buffered()
    pair.peer.sendall(b"x")
    assert pair.connection.has_buffered()
    pair.peer.close()
    assert pair.connection.has_buffered()


def test_descriptors_travel_with_a_message_that_wants_them() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sender, receiver = Connection(a, CandidateReply), Connection(b, CandidateRequest)
    pipes = [os.pipe() for _ in range(50)]
    sender.send(Load("p", "ModelNew", True), [read for read, _ in pipes], soon())
    for read, _ in pipes:
        os.close(read)
    assert receiver.recv(soon(), accept_fds=True) == Load("p", "ModelNew", True)
    received = receiver.take_fds()
    assert len(received) == 50
    for number, ((_, write), read) in enumerate(zip(pipes, received, strict=True)):
        os.write(write, b"%d" % number)
        assert os.read(read, 10) == b"%d" % number
        os.close(write)
        os.close(read)
    assert receiver.take_fds() == []
    sender.close()
    receiver.close()


def test_descriptors_nobody_asked_for_are_not_kept(pair: Pair) -> None:
    read, write = os.pipe()
    socket.send_fds(pair.peer, [frame(Loaded())], [write])
    os.close(write)
    assert pair.connection.recv(soon()) == Loaded()
    assert pair.connection.take_fds() == []
    os.set_blocking(read, False)
    assert os.read(read, 1) == b""  # end of file: no copy of the write end is left
    os.close(read)


def test_closing_closes_descriptors_that_nobody_took() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    receiver = Connection(b, CandidateRequest)
    read, write = os.pipe()
    socket.send_fds(a, [frame(Construct(1, [], False))], [write])
    os.close(write)
    receiver.recv(soon(), accept_fds=True)
    receiver.close()
    os.set_blocking(read, False)
    assert os.read(read, 1) == b""
    os.close(read)
    a.close()
