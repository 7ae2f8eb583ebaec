"""What the judge hears of its zygote, however the messages arrive."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

from server.worker.connection import Connection
from server.worker.process import Zygote
from server.worker.protocol import Exited, Frozen, Killed, Spawned, ZygoteReply, ZygoteRequest


@contextlib.contextmanager
def zygote_and_peer() -> Iterator[tuple[Zygote, Connection]]:
    """A zygote without a process, and what would be its end of the connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    zygote = Zygote.__new__(Zygote)
    zygote.connection, zygote.exited, zygote.unfit = Connection(ours, ZygoteReply), None, ""
    peer = Connection(theirs, ZygoteRequest)
    try:
        yield zygote, peer
    finally:
        zygote.connection.close()
        peer.close()


@pytest.mark.parametrize(
    ("answer", "ask"),
    [
        (Frozen(), lambda zygote: zygote.freeze(everything=True)),
        (Killed(), lambda zygote: zygote.kill_all(1.0)),
    ],
    ids=["frozen", "killed"],
)
@pytest.mark.parametrize("exit_first", [True, False])
def test_an_exit_that_comes_with_another_answer_is_seen(
    answer: Frozen | Killed, ask: Callable[[Zygote], None], exit_first: bool
) -> None:
    with zygote_and_peer() as (zygote, peer):
        for message in (Exited(7, signal=9), answer)[:: 1 if exit_first else -1]:
            peer.send(message)
        ask(zygote)
        assert zygote.exited == Exited(7, signal=9)
        assert zygote.connection.pop() is None


def test_a_candidate_that_ends_at_once_is_seen() -> None:
    with zygote_and_peer() as (zygote, peer):
        peer.send(Spawned(7))
        peer.send(Exited(7, code=3))
        assert zygote._expect(Spawned, 1.0) == Spawned(7)
        assert zygote.exited == Exited(7, code=3)
