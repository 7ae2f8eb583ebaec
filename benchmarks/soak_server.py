"""The server that benchmarks/soak.py torments: its directories, its process, and what /proc says of what is below it.

Touches processes that it started, and directories of its own. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from server.eval_log import numbered  # noqa: E402

START_S = 300.0
# uvicorn's grace for running steps and a hung judge's end; a server that ends well takes a second or two.
STOP_S = 60.0
# Of TMPDIR. On a GPU host nvcc's precompiled headers are made there.
TMPDIR_BYTES = {"cpu": 256 << 20, "mock": 256 << 20, "gpu": 2 << 30}
COMPILERS = ("c++", "g++", "cc", "gcc", "clang", "clang++")
# The processes of a compilation, by the names that the kernel shows.
_COMPILING = frozenset(
    {*COMPILERS, "ninja", "cc1plus", "as", "ld", "collect2", "nvcc", "cudafe++", "cicc", "ptxas", "fatbinary"}
)
LOG_NAME = "log.jsonl"
# Where in a judge's command its directory stands, and what a submission's first line is.
_BASE = 5
_NONCE = re.compile("^# ([0-9a-f]{32})$")


# ---------------------------------------------------------------- directories


@dataclass(frozen=True)
class Place:
    """Where a server reads and writes. `tools` is all of its PATH; `limited` says that `temporary` can be filled;
    `logs` is the directory of its log."""

    temporary: Path
    cache: Path
    tools: Path
    logs: Path
    output: Path
    limited: bool

    def environment(self) -> dict[str, str]:
        """What a server is given of it."""
        variables = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
        return variables | {
            "PATH": str(self.tools),
            "TMPDIR": str(self.temporary),
            "KERNEL_ENV_CACHE_DIR": str(self.cache),
            "KERNEL_ENV_EVAL_LOG": str(self.logs / LOG_NAME),
        }

    def lines(self) -> list[dict[str, Any]]:
        """The log, over all of its files."""
        path = self.logs / LOG_NAME
        files = [*(file for _, file in numbered(path)), path]
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@contextlib.contextmanager
def place(out: Path, evaluator: str) -> Iterator[Place]:
    """Directories for one server, removed afterwards but for the log and the output, which are in `out`."""
    with tempfile.TemporaryDirectory(prefix="kernel_env-soak-") as name:
        root = Path(name)
        root.chmod(0o755)  # submissions run as other users
        for part in ("tmp", "cache", "tools"):
            (root / part).mkdir(mode=0o755)
        _link_tools(root / "tools")
        limited = _mount(root / "tmp", TMPDIR_BYTES[evaluator])
        (root / "tmp").chmod(0o755)
        logs, output = out / "soak_log", out / "soak_server.log"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir()
        output.write_bytes(b"")
        try:
            yield Place(root / "tmp", root / "cache", root / "tools", logs, output, limited)
        finally:
            if limited:
                subprocess.run(["umount", "--lazy", str(root / "tmp")], capture_output=True)


def _mount(directory: Path, size: int) -> bool:
    """Put a small file system in memory there; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


def _link_tools(directory: Path) -> None:
    """A link for every program on the PATH, so that one of them can go away for a while."""
    places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), os.path.dirname(sys.executable)]
    for path in filter(os.path.isdir, places):
        for name in os.listdir(path):
            with contextlib.suppress(OSError):
                (directory / name).symlink_to(os.path.join(path, name))


# ---------------------------------------------------------------- processes


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it; its start time tells it from a later one with the same id."""

    pid: int
    parent: int
    session: int
    started: str

    def is_alive(self) -> bool:
        """Whether it still runs, and is no zombie."""
        now = _process(self.pid)
        return now is not None and now.started == self.started


def processes() -> dict[int, Process]:
    """Every process of this host that is not a zombie."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: process for pid in pids if (process := _process(pid)) is not None}


def _process(pid: int) -> Process | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return Process(pid, int(fields[1]), int(fields[3]), fields[19])
    return None


def below(root: int, every: dict[int, Process]) -> list[Process]:
    """The descendants of a process, nearest first."""
    found = [root]
    for known in found:
        found += [pid for pid, process in every.items() if process.parent == known]
    return [every[pid] for pid in found[1:]]


def masked(mask: int) -> int | None:
    """The process with this file mode mask."""
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nUmask:\t{mask:04o}\n" in path.read_text():
                return int(path.parent.name)
    return None


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@dataclass
class Family:
    """The processes below a server. `strangers` are those that no idle server has."""

    judges: list[int] = field(default_factory=list)
    zygotes: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    compilers: list[int] = field(default_factory=list)
    strangers: list[int] = field(default_factory=list)


def family(server: int) -> Family:
    """Look at the processes below a server."""
    every, found = processes(), Family()
    helpers: set[int] = set()
    inside: set[int] = set()
    for process in below(server, every):
        words = _words(process.pid)
        if process.parent == server and b"server.worker.judge" in words:
            found.judges.append(process.pid)
        elif process.parent in found.judges and b"server.worker.zygote" in words:
            found.zygotes.append(process.pid)
        elif b"server.worker.extension_build" in words or process.parent in helpers:
            helpers.add(process.pid)  # prepares compilation in the background
        elif process.parent in inside:
            inside.add(process.pid)
            found.strangers.append(process.pid)
            if _name(process.pid) in _COMPILING:
                found.compilers.append(process.pid)
        elif process.session == process.pid:
            inside.add(process.pid)
            found.candidates.append(process.pid)
        elif process.parent not in found.zygotes:  # a zygote has the init of the next submission's namespace
            found.strangers.append(process.pid)
    found.strangers += found.candidates
    return found


def judge_of(pid: int, every: dict[int, Process]) -> int | None:
    """The judge that a process is, or is below."""
    while (process := every.get(pid)) is not None and b"server.worker.judge" not in _words(pid):
        pid = process.parent
    return pid if process is not None else None


def in_work(judge: int) -> set[str]:
    """The nonce of the submission that a judge runs, which lies in its directory; of the one before, perhaps, too.

    None where it runs a task's reference, or no process at all.
    """
    words, found = _words(judge), set()
    runs = any(process.session == process.pid for process in below(judge, processes()))
    if runs and len(words) > _BASE:
        for path in Path(os.fsdecode(words[_BASE])).glob("eval-*/submission.py"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found |= set(_NONCE.findall(path.read_text(encoding="utf-8").partition("\n")[0]))
    return found


def footprint(pids: list[int]) -> dict[str, float]:
    """Of some processes together: resident MiB, descriptors (where they may be read) and threads."""
    sample = {"rss": 0.0, "threads": 0}
    for pid in pids:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            sample["rss"] += round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
            sample["threads"] += len(os.listdir(f"/proc/{pid}/task"))
            sample["fds"] = sample.get("fds", 0) + len(os.listdir(f"/proc/{pid}/fd"))
    return sample


# ---------------------------------------------------------------- the server


def get(url: str, timeout_s: float = 10.0) -> dict[str, Any] | None:
    """A JSON answer, whatever its status; None without one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with contextlib.suppress(ValueError):
            return json.load(error)
    except (OSError, ValueError):
        pass
    return None


class Server:
    """A server process in a place."""

    def __init__(self, where: Place, settings: dict[str, str]) -> None:
        """Start it.

        Raises:
            RuntimeError: it does not come up; the message has the end of what it wrote.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.place = where
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "server.app", "--host", "127.0.0.1", "--port", str(port)]
        with where.output.open("ab") as sink:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=where.environment() | settings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the log once more
                stderr=sink,
                start_new_session=True,
            )
        end = time.monotonic() + START_S
        while (status := get(f"{self.url}/status")) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"the server did not start:\n{where.output.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
        self.first_status = status

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> dict[str, Any]:
        """GET /status; empty while it does not answer."""
        return get(f"{self.url}/status") or {}

    def sample(self) -> dict[str, Any]:
        """Everything that could leak, at this moment."""
        found, temporary = family(self.pid), self.place.temporary
        names = sorted(path.name for path in temporary.iterdir())
        return {
            "server": footprint([self.pid]),
            "judges": footprint(found.judges),
            "zygotes": footprint(found.zygotes),
            "processes": {"judges": len(found.judges), "zygotes": len(found.zygotes)},
            "strangers": [b" ".join(_words(pid)).decode(errors="replace")[:200] for pid in found.strangers],
            "directories of judges": sum(name.startswith("kernel_env-") for name in names),
            "other files": [name for name in names if not name.startswith("kernel_env-")],
            "submissions' directories": sum(1 for _ in temporary.glob("kernel_env-*/eval-*")),
        }

    def stop(self) -> dict[str, Any]:
        """SIGTERM; what is left afterwards, which is then killed."""
        every = processes()
        tree = [every[self.pid], *below(self.pid, every)] if self.pid in every else []
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        took_s, code = time.monotonic() - began, self._process.returncode
        left = _alive(tree)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._process.wait()
        files = [path.name for path in self.place.temporary.glob("kernel_env-*")]
        return {"seconds": round(took_s, 2), "exit_code": code, "processes": len(left), "files": files}

    def kill(self) -> None:
        """End it and all below it at once."""
        for process in below(self.pid, processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _alive(tree: list[Process]) -> list[Process]:
    """Which of them still live, after a moment for those that are just ending."""
    end = time.monotonic() + 5.0
    while True:
        left = [one for one in tree if one.is_alive()]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)
