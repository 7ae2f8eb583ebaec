"""The server's file descriptors when there are no more."""

from __future__ import annotations

import logging
import subprocess
import sys

from server.descriptors import Seldom

RAISE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)))
from server import descriptors
descriptors.prepare()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert 64 < soft == hard
"""


def test_as_many_descriptors_as_the_host_allows() -> None:
    subprocess.run([sys.executable, "-c", RAISE], check=True)


def test_connections_that_cannot_be_accepted_do_not_fill_the_log() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("asyncio", logging.ERROR, "", 0, text, None, None)

    seldom = Seldom()
    assert seldom.filter(record("socket.accept() out of system resource"))
    assert not seldom.filter(record("socket.accept() out of system resource"))
    assert seldom.filter(record("Task exception was never retrieved"))
