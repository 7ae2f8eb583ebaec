"""What a submission can reach around itself, and what is left of it afterwards. The static checks are not asked here.

A submission reports what it found through an exception's message, which comes back as feedback.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator

import pytest

from server.worker.protocol import Verdict
from tests.cpu_pool import NEEDS_CPU_EVALUATOR, NEEDS_ROOT, Pool, open_pool
from tests.cpu_submissions import GOOD, UNCHECKED, Bad, softmax

pytestmark = NEEDS_CPU_EVALUATOR

SECRET = f"secret-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One evaluator for the module, started by a process with a secret in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_SECRET", SECRET)
        with open_pool() as opened:
            yield opened


def run(pool: Pool, code: str) -> Verdict:
    """The verdict on a submission; whatever it does, it is no fault of ours."""
    result = pool.score(code)
    assert result.verdict.infra_code is None, result.verdict.infra_detail
    assert result.attempts == 1
    return result.verdict


def found(pool: Pool, statements: str, expression: str) -> str:
    """What `expression` is inside a submission's forward, as text."""
    verdict = run(pool, softmax(forward=f"{statements}\nraise RuntimeError('FOUND<' + str({expression}) + '>')"))
    start = "RuntimeError: FOUND<"
    assert verdict.feedback.startswith(start), verdict.feedback
    return verdict.feedback.removeprefix(start).split(">")[0]


@pytest.mark.parametrize("bad", UNCHECKED.values(), ids=UNCHECKED.keys())
def test_the_evaluator_does_not_count_on_the_static_checks(pool: Pool, bad: Bad) -> None:
    verdict = run(pool, bad.code)
    assert (verdict.stage, verdict.outcome) == (bad.stage, bad.outcome), verdict.feedback
    assert all(word in verdict.feedback for word in bad.words), verdict.feedback


# ---------------------------------------------------------------- what it can see


@NEEDS_ROOT
def test_it_is_not_root_and_cannot_become_it(pool: Pool) -> None:
    identity = found(pool, "", "[os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]")
    uid, euid, gid = (int(part) for part in identity.strip("[]").split(", ")[:3])
    assert uid == euid != 0 and gid != 0
    assert identity.endswith("[]]")
    assert "PermissionError" in found(
        pool,
        "try:\n    os.setuid(0)\n    got = 'root'\nexcept OSError as error:\n    got = type(error).__name__",
        "got",
    )


def test_it_sees_no_secret_in_its_own_environment(pool: Pool) -> None:
    names = found(pool, "", "sorted(os.environ)")
    assert "'PATH'" in names and "FAKE_SECRET" not in names
    read = "try:\n    got = open('/proc/self/environ').read()\nexcept OSError:\n    got = ''"
    assert found(pool, read, "'FAKE_SECRET' in got") == "False"


@NEEDS_ROOT
def test_it_cannot_read_the_environment_or_memory_of_other_processes(pool: Pool) -> None:
    read = (
        "seen = 0\n"
        "for name in os.listdir('/proc'):\n"
        "    for entry in ('environ', 'maps'):\n"
        "        try:\n"
        "            if name.isdigit() and int(name) != os.getpid() and open(f'/proc/{name}/{entry}', 'rb').read():\n"
        "                seen += 1\n"
        "        except OSError:\n"
        "            pass"
    )
    assert found(pool, read, "seen") == "0"


@NEEDS_ROOT
def test_it_cannot_signal_the_processes_around_it(pool: Pool) -> None:
    kill = (
        "import signal\n"
        "for pid in [os.getppid(), *(int(name) for name in os.listdir('/proc') if name.isdigit())]:\n"
        "    if pid not in (0, os.getpid()):\n"
        "        try:\n"
        "            os.kill(pid, signal.SIGKILL)\n"
        "        except OSError:\n"
        "            pass"
    )
    before = pool.judge_pid(), pool.zygote_pid()
    assert run(pool, softmax(forward=kill)).outcome == "scored"
    assert (pool.judge_pid(), pool.zygote_pid()) == before


@NEEDS_ROOT
def test_it_has_no_network(pool: Pool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = (
            "import socket\ntry:\n"
            f"    socket.create_connection({server.getsockname()!r}, timeout=5)\n    got = 'connected'\n"
            "except OSError as error:\n    got = type(error).__name__"
        )
        assert found(pool, connect, "got") != "connected"


def test_it_inherits_no_descriptor_but_its_own(pool: Pool) -> None:
    listing = (
        "opened = []\nfor name in os.listdir('/proc/self/fd'):\n    try:\n"
        "        opened.append(os.readlink('/proc/self/fd/' + name).split(':')[0])\n    except OSError:\n        pass"
    )
    opened = found(pool, listing, "sorted(opened)")
    assert opened.count("'socket'") == 1, opened
    assert "'/dev/null'" in opened


# ---------------------------------------------------------------- what is left


def test_it_leaves_no_file_for_the_next_one(pool: Pool) -> None:
    name = f"left-{uuid.uuid4().hex}"
    places = ["/tmp", "/var/tmp", "/dev/shm", "/run", "/", "/work", "/root", os.getcwd(), "."]
    write = (
        f"for place in {places!r}:\n    try:\n"
        f"        open(os.path.join(place, {name!r}), 'w').close()\n    except OSError:\n        pass"
    )
    look = f"[place for place in {places!r} if os.path.exists(os.path.join(place, {name!r}))]"
    assert "'.'" in found(pool, write, look), "a submission may write in its own directory"
    assert found(pool, "", look) == "[]"
    assert not [place for place in places[:-1] if os.path.exists(os.path.join(place, name))]


def test_it_cannot_change_the_installation(pool: Pool) -> None:
    write = (
        "import sys\nimport server.worker.candidate as candidate\ngot = []\n"
        "for path in (triton.__file__, torch.__file__, os.__file__, candidate.__file__):\n    try:\n"
        "        open(path, 'a').close()\n        got.append(path)\n    except OSError:\n        pass"
    )
    if os.geteuid() == 0:
        assert found(pool, write, "got") == "[]"


_SLEEPER = """\
marker = {marker!r}

def running():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and marker.encode() in open(f"/proc/{{name}}/cmdline", "rb").read():
                return True
        except OSError:
            pass
    return False

if os.fork() == 0:
    {become}
    os.execv("/bin/sleep", [marker, "1000"])
while not running():
    pass
"""


def marked(marker: str) -> list[int]:
    """Processes on this machine with a marker in their command line."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as handle:
                if marker.encode() in handle.read():
                    pids.append(int(name))
        except OSError:
            pass
    return pids


@pytest.mark.parametrize(
    "become",
    ["pass", "os.setsid()", "os.setsid() if os.fork() == 0 else os._exit(0)"],
    ids=["child", "session of its own", "daemon"],
)
@pytest.mark.parametrize("end", ["pass", "os._exit(0)"], ids=["scored", "exits"])
def test_its_children_end_with_it(pool: Pool, become: str, end: str) -> None:
    """They hold its standard output and its socket open, which must not keep the judge waiting either."""
    marker = f"marker-{uuid.uuid4().hex}"
    verdict = run(pool, softmax(top=_SLEEPER.format(marker=marker, become=become), forward=end))
    assert verdict.outcome == ("exited" if end != "pass" else "scored"), verdict.feedback
    assert marked(marker) == []


def test_many_children_end_with_it(pool: Pool) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    many = f"for _ in range(60):\n    if os.fork() == 0:\n        os.execv('/bin/sleep', [{marker!r}, '1000'])"
    assert run(pool, softmax(top=many)).outcome == "scored"
    assert marked(marker) == []


# ---------------------------------------------------------------- what it can say

_FORGE = """\
import struct
import msgspec
from server.worker import protocol

def send(message):
    body = msgspec.msgpack.encode(message)
    os.write(3, struct.pack("<I", len(body)) + body)
"""


@pytest.mark.parametrize(
    "forward",
    [
        "os.write(3, b'\\xff' * 4096)",
        "os.write(3, struct.pack('<I', 5) + b'\\xc1' * 5)",
        "send(protocol.Loaded())",
        "send(protocol.Ran(0, 0.001, 0.1, ['x', 0], [protocol.OutputMeta([16, 1000], [1000, 1], 'float32')]))",
        "send(protocol.Ran(0, 0.001, 0.1, ['x', 10 ** 9], []))",
        "send(protocol.Verdict('', 'scored', 'scored', t_ref_ms=100.0, t_new_ms=0.001))",
    ],
    ids=["oversized", "garbage", "wrong reply", "early answer", "no such tensor", "a verdict"],
)
def test_forged_messages_are_the_submissions_failure(pool: Pool, forward: str) -> None:
    verdict = run(pool, softmax(top=_FORGE, forward=forward))
    assert verdict.outcome == "protocol_error", verdict
    assert verdict.feedback


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("outputs[0].offset", "4"),
        ("outputs[0].strides", "[0, 0]"),
        ("outputs[0].strides", "[10 ** 6, 1]"),
        ("outputs[0].strides", "[-1000, 1]"),
        ("outputs[0].in_slot", "False"),
        ("spec", "['x', 1]"),
        ("spec", "['t', [['x', 0], ['x', 0]]]"),
        ("spec", "[['x', 0]]"),
        ("outputs", "[]"),
        ("outputs", "answer.outputs * 2"),
        ("outputs[0].shape", "[16, 10 ** 12]"),
        ("outputs[0].shape", "[-16, -1000]"),
        ("outputs[0].dtype", "'no_such_dtype'"),
        ("call", "answer.call + 1"),
    ],
)
def test_a_forged_answer_is_refused_or_changes_nothing(pool: Pool, change: str, value: str) -> None:
    """It replaces the code that answers for it, so that the answer's fields are what it wants."""
    forge = (
        "import server.worker.candidate as candidate\nhonest = candidate.Candidate._run\n"
        "def forged(self, request):\n    answer = honest(self, request)\n"
        f"    answer.{change} = {value}\n    return answer\ncandidate.Candidate._run = forged\n"
    )
    verdict = run(pool, softmax(top=forge, value="y"))
    assert verdict.stage == "correctness"
    assert not verdict.correct


def test_a_closed_connection_is_the_submissions_failure(pool: Pool) -> None:
    assert run(pool, softmax(forward="os.close(3)")).outcome in ("exited", "protocol_error")


def test_a_forged_clock_is_not_believed(pool: Pool) -> None:
    clock = "import time\nsleep, time.perf_counter = time.sleep, lambda: 0.0"
    result = pool.score(softmax(top=clock, forward="sleep(0.05)"))
    verdict = result.verdict
    assert (verdict.outcome, verdict.timing_method) == ("scored", "wall")
    assert verdict.t_new_ms is not None and verdict.t_new_ms > 45.0


def test_after_all_of_them_the_worker_is_as_good_as_before(pool: Pool) -> None:
    assert run(pool, GOOD).outcome == "scored"
    (worker,) = pool.evaluator.status()["workers"]
    assert worker["faults"] == 0
