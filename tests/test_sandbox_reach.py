"""Which processes, sockets and system calls a candidate reaches, and how it and its children end.

As test_sandbox.py: submissions try it on several hosts, and `bare` is the control. Needs root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")
if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Linux", allow_module_level=True)

from server.worker import sandbox, seccomp
from server.worker.process import SubmissionFailed
from server.worker.protocol import Load, Loaded
from tests.sandbox_hosts import (
    BARE,
    CONTAINER,
    FULL,
    HOSTS,
    NO_LANDLOCK,
    SAME_UID,
    TIMEOUT_S,
    UNPRIVILEGED,
    USER,
    start,
)

X86 = platform.machine() == "x86_64"

everywhere = pytest.mark.parametrize("kind", HOSTS, ids=lambda kind: kind.name)


# ---------------------------------------------------------------- processes


@contextmanager
def victim(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process outside, of the candidate's own user, so that the user alone does not protect it."""
    with subprocess.Popen(
        ["sleep", "1000"], user=uid, group=uid, extra_groups=[], stdin=subprocess.DEVNULL
    ) as process_:
        try:
            yield process_
        finally:
            process_.kill()


REACH = {
    "kill": "os.kill(pid, signal.SIGTERM)\nresult = True",
    "kill_everybody": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(-1, signal.SIGTERM)\nresult = True",
    "ptrace": "result = libc.ptrace(0x4206, pid, 0, 0) == 0 or None",  # PTRACE_SEIZE
    "memory": "result = os.close(os.open(f'/proc/{pid}/mem', os.O_RDONLY)) is None",
    "environment": "result = open(f'/proc/{pid}/environ').read() is not None",
}


@pytest.mark.parametrize("attack", REACH)
@everywhere
def test_other_processes_are_out_of_reach(kind, attack):
    host = start(kind)
    with victim(host.uid) as target:

        def outcome(result: object) -> bool:
            if attack.startswith("kill"):
                if kind is BARE:
                    return target.wait(TIMEOUT_S) != 0
                return target.poll() is not None
            return result is True

        assert host.run(REACH[attack], outcome, pid=target.pid) == (kind is BARE)


@pytest.mark.parametrize("kind", (FULL, BARE), ids=lambda kind: kind.name)
def test_the_processor_is_shared_by_submissions_and_not_by_the_sessions_they_make(kind):
    body = """
import subprocess
child = "import os; print(os.getsid(0))"
found = subprocess.run([sys.executable, "-c", child], start_new_session=True, capture_output=True, check=True)
result = int(found.stdout) == os.getsid(0)
"""
    assert start(kind).run(body) is (kind is FULL)


@pytest.mark.parametrize("kind", (FULL, NO_LANDLOCK), ids=lambda kind: kind.name)
def test_sees_only_itself(kind):
    body = "result = [os.getpid(), sorted(int(name) for name in os.listdir('/proc') if name.isdigit())]"
    answer = start(kind).run(body)
    assert isinstance(answer, list)
    own, seen = answer
    assert own != 1 and seen == [1, own]


def test_sees_the_host_without_a_namespace():
    assert start(BARE).run("result = str(pid) in os.listdir('/proc')", pid=os.getpid()) is True


@pytest.mark.parametrize("kind", (FULL, BARE, UNPRIVILEGED), ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("code", "outcome", "said"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV"),
        ("import os\nos.abort()", "crashed", "SIGABRT"),
        ("import os\nos._exit(7)", "exited", "code 7"),
    ],
)
def test_the_way_it_died_arrives_exactly(kind, code, outcome, said):
    with start(kind).candidate(code) as (candidate, _):
        with pytest.raises(SubmissionFailed) as failure:
            candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
    assert failure.value.outcome == outcome
    assert said in failure.value.message


DAEMON = """
import fcntl
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(write_end, b"x")
        while True:
            signal.pause()
    os._exit(0)
os.read(read_end, 1)
result = True
"""


@everywhere
def test_daemons_end_with_their_candidate(kind):
    handles = []
    host = start(kind)
    code = "import os, signal\n" + DAEMON + "import torch\nclass ModelNew(torch.nn.Module): pass\n"
    with host.candidate(code) as (candidate, workdir):
        candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")
        handles.append(open(workdir / "lock"))
        with pytest.raises(BlockingIOError):
            fcntl.flock(handles[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(handles[0], fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as one of them lives
    handles[0].close()


def processes_of(uid: int) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    found.append(name)
            except OSError:
                continue
    return found


@pytest.mark.parametrize("kind", (FULL, BARE), ids=lambda kind: kind.name)
def test_a_fork_bomb_is_ended(kind):
    host = start(kind)
    body = """
bomb = subprocess.Popen(["sh", "-c", "f() { f | f & }; f; sleep 1000"], stderr=subprocess.DEVNULL)
result = True
"""

    def alive(result: object) -> bool:
        return bool(result) and bool(processes_of(host.uid))

    assert host.run(body, alive)
    assert processes_of(host.uid) == []
    assert host.run("result = 1") == 1


@pytest.mark.parametrize("kind", (FULL, BARE, UNPRIVILEGED), ids=lambda kind: kind.name)
def test_tasks_are_limited(kind):
    body = """
threading.stack_size(65536)
event, result = threading.Event(), 0
try:
    for _ in range(limit + 10):
        threading.Thread(target=event.wait, daemon=True).start()
        result += 1
except RuntimeError:
    pass
event.set()
"""
    count = start(kind).run(body, limit=sandbox.MAX_TASKS)
    assert isinstance(count, int) and sandbox.MAX_TASKS // 2 < count <= sandbox.MAX_TASKS


# ---------------------------------------------------------------- network and sockets


@everywhere
def test_no_network(kind):
    body = "socket.create_connection(('127.0.0.1', port)).close()\nresult = True"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reached = start(kind).run(body, port=listener.getsockname()[1])
    assert (reached is True) == (kind is BARE)


@everywhere
def test_no_abstract_socket_of_the_host(kind):
    body = """
with socket.socket(socket.AF_UNIX) as client:
    client.connect("\\0" + name)
result = True
"""
    name = f"kernel_env-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        reached = start(kind).run(body, name=name)
    assert (reached is True) == (kind is BARE)


# ---------------------------------------------------------------- system calls

filtered = pytest.mark.parametrize("kind", (FULL, CONTAINER, SAME_UID), ids=lambda kind: kind.name)


@filtered
def test_denied_system_calls(kind):
    column = 0 if X86 else 1
    numbers = {name: entry[column] for name, entry in seccomp.DENIED.items() if entry[column] is not None}
    body = """
result = {}
for name, number in numbers.items():
    value = libc.syscall(number, -1, -1, -1, -1, -1, -1)
    result[name] = ctypes.get_errno() if value == -1 else 0
"""
    assert start(kind).run(body, numbers=numbers) == dict.fromkeys(numbers, errno.EPERM)


@filtered
def test_system_calls_denied_by_their_arguments(kind):
    body = """
def error(*call):
    value = libc.syscall(*call)
    return ctypes.get_errno() if value == -1 else 0
result = {
    "clone": [error(clone, flag | 17, 0, 0, 0, 0) for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000)],
    "clone3": error(435, 0, 0),
    "sockets": [error(socket_, family, 2, 0) for family in (2, 10, 16, 17, 38, 40)],
    "unix": error(socket_, 1, 1, 0),
    "waking a child": error(clone, signal.SIGCONT, 0, 0, 0, 0),
}
"""
    clone, socket_ = (56, 41) if X86 else (220, 198)
    assert start(kind).run(body, clone=clone, socket_=socket_) == {
        "clone": [errno.EPERM] * 4,
        "clone3": errno.ENOSYS,
        "sockets": [errno.EPERM] * 6,
        "unix": 0,
        "waking a child": errno.EPERM,
    }


@filtered
def test_system_calls_denied_with_one_value(kind):
    """No other process or thread has the number, so that what is let through fails in the kernel."""
    column = 0 if X86 else 1
    calls = {name: [entry[0][column], entry[1], int(entry[2])] for name, entry in seccomp.DENIED_WITH.items()}
    body = """
result = {}
for name, (number, argument, value) in calls.items():
    result[name] = []
    for tried in (value, 0):
        arguments = [2**31 - 1] * 6
        arguments[argument] = tried
        result[name].append(ctypes.get_errno() if libc.syscall(number, *arguments) == -1 else 0)
"""
    answer = start(kind).run(body, calls=calls)
    assert isinstance(answer, dict) and list(answer) == list(calls)
    for name, (denied, other) in answer.items():
        assert denied == errno.EPERM, name
        assert other != errno.EPERM, name


def test_the_other_system_call_tables_are_fatal():
    if platform.machine() != "x86_64":
        pytest.skip("x32 is x86's")
    code = "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)"
    with start(FULL).candidate(code) as (candidate, _):
        with pytest.raises(SubmissionFailed, match="SIGSYS"):
            candidate.call(Load("submission.py", "ModelNew", True), Loaded, TIMEOUT_S, "It")


def test_a_user_namespace_can_be_made_where_nothing_is_filtered():
    """The control: the filter is what denies it, and it is one that gives capabilities to those who have none."""
    body = "result = libc.syscall(number, 0x10000000)"
    number = 272 if X86 else 97
    assert start(FULL).run(body, number=number) == -1
    control = subprocess.run(["unshare", "--user", "true"], user=USER, group=USER, extra_groups=[])
    if control.returncode != 0:
        pytest.skip("this machine denies them to everybody")
