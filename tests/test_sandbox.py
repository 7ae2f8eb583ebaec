"""What a candidate's privileges are, which files it reaches, and how the level is found and reported.

Submissions in real candidates try it on the hosts of sandbox_hosts.py. `bare` is the control: what the other hosts
block works there, or nothing would show that an attack can succeed. Needs root, since only root can make the hosts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import pytest

pytest.importorskip("torch")
if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Linux", allow_module_level=True)

from server.evaluator import EvaluatorUnavailable
from server.pool import PoolEvaluator
from server.settings import Settings
from server.worker import level, sandbox, users
from server.worker.candidate_environment import candidate_environment
from server.worker.lease import InfrastructureFault
from server.worker.process import CandidateProcess
from server.worker.protocol import Spawn
from tests.sandbox_hosts import (
    BARE,
    CONTAINER,
    FULL,
    HOSTS,
    MEMORY_BYTES,
    NO_LANDLOCK,
    ROOT,
    SAME_UID,
    TIMEOUT_S,
    UNPRIVILEGED,
    USER,
    Host,
    no_lease,
    popen_on,
    start,
)

everywhere = pytest.mark.parametrize("kind", HOSTS, ids=lambda kind: kind.name)


@everywhere
def test_level_is_what_the_host_gives(kind):
    assert start(kind).zygote.sandbox == kind.level


# ---------------------------------------------------------------- privileges

STATUS = """
lines = [line.split(":") for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Groups"))]
result = {name: value.strip() for name, value in lines}
result["ids"] = [*os.getresuid(), *os.getresgid()]
"""


@everywhere
def test_no_privileges(kind):
    host = start(kind)
    status = host.run(STATUS)
    assert isinstance(status, dict)
    assert status["ids"] == [host.uid] * 6
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"] == ""
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    if kind is not SAME_UID:  # only someone with capabilities can, and needs to, drop them
        assert status["CapBnd"] == "0" * 16


@everywhere
def test_cannot_become_root(kind):
    assert start(kind).run("os.setuid(0)\nresult = True") is None


@everywhere
def test_environment_holds_nothing_of_the_server(kind):
    names = start(kind).run("result = sorted(os.environ)")
    private = {"HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME"}
    private |= {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE"}
    allowed = {*candidate_environment("cpu", None), *private}
    assert isinstance(names, list)
    assert {name for name in names if not name.startswith(("TRITON_", "TORCH", "CUDA_"))} <= allowed


# ---------------------------------------------------------------- files


def test_project_is_hidden():
    body = "result = open(path).read(9)"
    for path in (ROOT / "examples/level1/19_ReLU.py", ROOT / "server/worker/judge.py", ROOT / "pyproject.toml"):
        for kind in (FULL, CONTAINER, NO_LANDLOCK, UNPRIVILEGED, SAME_UID):
            assert start(kind).run(body, path=str(path)) is None, (kind.name, path)
        assert start(BARE).run(body, path=str(path)) == path.read_text()[:9]


@everywhere
def test_installed_packages_can_still_be_imported(kind):
    # None of them is imported by the zygote.
    body = """
before = "torch.utils.model_zoo" in sys.modules or "mailbox" in sys.modules
import mailbox, torch.utils.model_zoo
result = [before, subprocess.run(["cc", "--version"], stdout=subprocess.PIPE).returncode]
"""
    assert start(kind).run(body) == [False, 0]


@everywhere
def test_the_working_directory_is_writable_and_the_temporary_one(kind):
    body = """
import tempfile
os.makedirs("a/b")
with tempfile.NamedTemporaryFile(delete=False) as file:
    file.write(b"x")
os.replace(file.name, "a/b/c")
os.symlink("a", "link")
names = ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
outside = [name for name in names if os.path.commonpath([os.environ.get(name, "/"), os.getcwd()]) != os.getcwd()]
result = [open("link/b/c").read(), os.path.dirname(file.name) == os.getcwd(), outside]
"""
    assert start(kind).run(body) == ["x", True, []]


def test_nothing_else_is_writable():
    body = """
with open(directory + "/left", "w") as file:
    result = file.write("x")
"""
    with tempfile.TemporaryDirectory(dir="/opt") as directory:
        os.chmod(directory, 0o777)
        for kind in (FULL, CONTAINER, UNPRIVILEGED, SAME_UID):
            assert start(kind).run(body, directory=directory) is None, kind.name
        assert os.listdir(directory) == []
        assert start(BARE).run(body, directory=directory) == 1


@everywhere
def test_nothing_is_left_in_the_shared_directories(kind):
    body = """
result = 0
for directory in ("/tmp", "/var/tmp", "/dev/shm"):
    try:
        os.makedirs(directory + "/" + name + "/below")
        result += 1
    except OSError:
        pass
"""
    name = f"kernel_env-left-{os.getpid()}"
    written = start(kind).run(body, name=name)
    assert written == {"bare": 3, "same_uid": 0, "container": 0, "no_landlock": 3}.get(kind.name, 2)
    assert [path for path in ("/tmp", "/var/tmp", "/dev/shm") if os.path.exists(f"{path}/{name}")] == []


# ---------------------------------------------------------------- probing and reporting

PROBE = """
import os, sys
from server.worker import sandbox
sandbox.become_subreaper()
def use():
    with open("/proc/self/status") as lines:
        status = dict(line.split(":", 1) for line in lines)
    here = {"pid"} if os.getppid() == 0 else set()
    here |= {"seccomp"} if status["Seccomp"].strip() != "0" else set()
    if here & set(sys.argv[1:]):
        raise RuntimeError("no device")
found, claim = sandbox.probe(use)
print(found, found.uid)
"""


@pytest.mark.parametrize(
    ("broken_with", "lost"), [((), set()), (("pid",), {"pid"}), (("seccomp",), {"seccomp"}), (("pid", "seccomp"), None)]
)
def test_features_with_which_the_device_fails_are_given_up(broken_with, lost):
    start(FULL)  # skips where this machine has less
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *broken_with], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    reached = set(done.stdout.split()[0].split("+"))
    assert set(level.FEATURES) - reached == ({"pid", "seccomp"} if lost is None else lost)
    assert ("no device" in done.stderr) == bool(broken_with)


def test_a_candidate_that_cannot_be_confined_is_a_fault_of_ours(tmp_path):
    host = Host(FULL)
    try:
        with pytest.raises(InfrastructureFault, match="zygote_lost"):
            CandidateProcess(host.zygote, no_lease(), Spawn(str(tmp_path / "missing"), MEMORY_BYTES))
    finally:
        host.zygote.close()


def test_two_judges_have_two_users():
    with_one = start(FULL).uid
    uid, claim = users.claim_uid()
    with claim:
        assert uid != with_one
        assert users.FIRST_UID <= uid <= users.LAST_UID
        other, second = users.claim_uid()
        second.close()
        assert other not in (uid, with_one)


def test_what_a_lost_judge_left_is_ended_and_nothing_of_another_judge():
    uid, claim = users.claim_uid()
    with subprocess.Popen(["sleep", "1000"], user=uid, group=uid, extra_groups=[]) as left:
        with claim:
            users.end_processes_of(os.getpgid(0))
            assert left.poll() is None
        users.end_processes_of(os.getpgid(0) + 1)
        assert left.poll() is None
        users.end_processes_of(os.getpgid(0))
        assert left.wait(TIMEOUT_S) == -signal.SIGKILL


def test_a_probe_whose_child_was_killed_is_tried_again(monkeypatch):
    answers = iter([sandbox._DIED, None])
    monkeypatch.setattr(sandbox, "_attempt_once", lambda *_: next(answers))
    host: Any = None
    assert sandbox._attempt(host, int) is None


TAKE_USERS = """
import errno, fcntl
held, result = [], []
for uid in range(first, last + 1):
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    held[-1].bind(f"\\0kernel_env-candidate-{uid}")
for directory in ("/run/kernel_env", "/tmp/kernel_env-users"):
    for uid in range(first, last + 1):
        try:
            lock = open(f"{directory}/{uid}.lock", "rb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            result.append(lock.name)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOENT):
                raise
"""


@pytest.mark.parametrize("kind", (CONTAINER, BARE), ids=lambda kind: kind.name)
def test_a_candidate_cannot_take_the_users_of_other_judges(kind):
    def claim(locked: object) -> object:
        users.claim_uid()[1].close()
        return locked

    assert start(kind).run(TAKE_USERS, claim, first=users.FIRST_UID, last=users.LAST_UID) == []


def test_a_directory_for_the_locks_that_somebody_else_made_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(users.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(users, "_MAIN_DIRECTORY", str(tmp_path / "missing" / "run"))
    (tmp_path / "kernel_env-users").mkdir(mode=0o700)
    users.claim_uid()[1].close()
    os.chown(tmp_path / "kernel_env-users", USER, USER)
    with pytest.raises(PermissionError, match="root's own"):
        users.claim_uid()


def test_a_device_that_works_in_no_sandbox_is_said():
    code = "from server.worker import sandbox\nsandbox.become_subreaper()\nsandbox.probe(lambda: 1 / 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert "the device does not work in any sandbox: ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("reached", "lacks"),
    [
        (FULL.level, None),
        (CONTAINER.level, None),
        (NO_LANDLOCK.level, None),
        (BARE.level, "no network (a network namespace or seccomp), private files (a mount namespace or Landlock)"),
        ("uid+seccomp", "private files (a mount namespace or Landlock)"),
        ("uid+mount+ipc+pid", "no network (a network namespace or seccomp)"),
        (UNPRIVILEGED.level, "another user than the server's (start it as root)"),
    ],
)
def test_what_required_asks_for(reached, lacks):
    assert level.shortfall(reached) == lacks


def test_required_refuses_to_start_below_the_level():
    evaluator = PoolEvaluator(Settings().model_copy(update={"evaluator": "cpu", "sandbox": "required"}))
    with popen_on(BARE), pytest.raises(EvaluatorUnavailable, match="KERNEL_ENV_SANDBOX=required.*lacks: no network"):
        evaluator.start()


SERVER = """
import asyncio, json, os
from server.pool import PoolEvaluator
from server.settings import Settings
from server.worker.children import descendants
from server.worker.protocol import Evaluate
evaluator = PoolEvaluator(Settings().model_copy(update={"evaluator": "cpu"}))
evaluator.start()
owners = {str(pid): os.stat(f"/proc/{pid}/environ").st_uid for pid in descendants(os.getpid())}
code = open("examples/level1/19_ReLU.py").read()
request = Evaluate("1", "level1/19_ReLU", SOURCE, code, timed_runs=3)
verdict = asyncio.run(evaluator.evaluate(request, 120.0)).verdict
print(json.dumps([evaluator.device.sandbox, verdict.outcome, verdict.infra_detail, verdict.feedback, owners]))
evaluator.close()
"""
RELU = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("kind", (UNPRIVILEGED, SAME_UID), ids=lambda kind: kind.name)
def test_a_server_without_root_evaluates_and_its_processes_cannot_be_inspected(kind):
    start(FULL)
    with popen_on(kind):
        done = subprocess.run(
            [sys.executable, "-c", SERVER.replace("SOURCE", repr(RELU))],
            **{"cwd": ROOT, "capture_output": True, "text": True, "timeout": 2 * TIMEOUT_S, "env": {"HOME": "/tmp"}},
        )
    assert done.returncode == 0, done.stderr
    reached, outcome, detail, feedback, owners = json.loads(done.stdout)
    assert (reached, outcome) == (kind.level, "scored"), (detail, feedback)
    # The judge and the zygote: the files of a process that cannot be dumped belong to root.
    assert len(owners) >= 2 and set(owners.values()) == {0}
