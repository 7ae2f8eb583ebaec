"""The messages between server, judge, zygote and candidate, and the frames that carry them.

Frames are a 4-byte little-endian length and a msgpack body, decoded into typed structs with msgspec: nothing is ever
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

# ---------------------------------------------------------------- server <-> judge


class DeviceInfo(msgspec.Struct):
    """What the judge runs on."""

    kind: str  # "cuda" | "cpu"
    name: str  # e.g. "NVIDIA H200"
    memory_bytes: int = 0
    driver: str | None = None
    torch: str | None = None
    triton: str | None = None
    sandbox: str = "none"  # the level reached, as level.describe writes it


class Ready(msgspec.Struct, tag="ready"):
    """judge -> server: the judge and its zygote are up."""

    device: DeviceInfo


class StartFailed(msgspec.Struct, tag="start_failed"):
    """judge -> server: the judge cannot run here; the reason is a sentence for the operator."""

    reason: str


class Evaluate(msgspec.Struct, tag="evaluate"):
    """server -> judge: score one submission."""

    eval_id: str
    task_id: str
    task_source: str
    code: str
    language: str = "triton"
    trials: int = 5
    atol: float = 1e-2
    rtol: float = 1e-2
    timed_runs: int = 20
    compile_timeout_s: float = 150.0
    run_timeout_s: float = 60.0
    budget_s: float = 240.0  # for the whole evaluation; the worker sets what is left of the step's deadline


class Cancel(msgspec.Struct, tag="cancel"):
    """server -> judge: drop the evaluation; the verdict that follows has infra_code 'cancelled'."""

    eval_id: str


class TaskFacts(msgspec.Struct):
    """What the roofline needs to know about a task; counted on the reference."""

    flops: int
    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    dtype: str  # of the floating inputs: "float32", "float16", "bfloat16"
    flops_complete: bool = True  # False where the counter does not see the work (cuDNN RNNs)


class Verdict(msgspec.Struct, tag="verdict"):
    """judge -> server: what happened. stage and outcome are the values of kernel_env.models.Stage and Outcome."""

    eval_id: str
    stage: str
    outcome: str
    feedback: str = ""
    compiled: bool = False
    correct: bool = False
    trials_passed: int = 0
    trials_total: int = 0
    max_abs_error: float | None = None
    t_ref_ms: float | None = None
    t_new_ms: float | None = None
    t_ref_spread: float | None = None
    t_new_spread: float | None = None
    timed_runs: int | None = None
    timing_method: str | None = None
    t_event_ms: float | None = None  # the two medians the timing was decided on, for the log
    t_wall_ms: float | None = None
    t_tolerance_ms: float | None = None
    facts: TaskFacts | None = None
    infra_code: str | None = None
    infra_detail: str = ""  # for the log, never for the client
    phase_seconds: dict[str, float] = {}


# ---------------------------------------------------------------- judge <-> candidate


class SlotLayout(msgspec.Struct):
    """How one tensor lies in its slot."""

    nbytes: int
    shape: list[int]
    strides: list[int]
    dtype: str


class Load(msgspec.Struct, tag="load"):
    """judge -> candidate: import the submission. `class_name` is ModelNew, or Model for the baseline."""

    path: str
    class_name: str
    guard: bool


class Loaded(msgspec.Struct, tag="loaded"):
    pass


class Construct(msgspec.Struct, tag="construct"):
    """judge -> candidate: build the model under `seed`. `init` is tree.flatten's spec of the arguments."""

    seed: int
    init: list[Any]
    eval_mode: bool


class Constructed(msgspec.Struct, tag="constructed"):
    """candidate -> judge: (name, shape, dtype) of the state dict, or None when weights must not be loaded."""

    state: list[tuple[str, list[int], str]] | None


GATE_BYTES = 4096


class Slots(msgspec.Struct, tag="slots"):
    """judge -> candidate: the shared memory. One descriptor for each input, then each output, then one block that
    holds all weights one after the other, aligned (a model can have more tensors than a frame can carry descriptors),
    then the gate's word of GATE_BYTES.
    """

    inputs: list[SlotLayout]
    outputs: list[SlotLayout]
    weights: list[SlotLayout]


class SlotsMapped(msgspec.Struct, tag="slots_mapped"):
    pass


class LoadWeights(msgspec.Struct, tag="load_weights"):
    """judge -> candidate: load the weight slots, in this order of names, with strict=True."""

    names: list[str]


class WeightsLoaded(msgspec.Struct, tag="weights_loaded"):
    pass


class Run(msgspec.Struct, tag="run"):
    """judge -> candidate: call the model once. `inputs` is tree.flatten's spec; `seed` reseeds torch when not None.

    `call` is unguessable and echoed; the gate opens at `gate`.
    """

    call: int
    gate: int
    inputs: list[Any]
    seed: int | None = None


class OutputMeta(msgspec.Struct):
    """Where the candidate says an output lies in its slot. Bounds-checked by the judge before use."""

    shape: list[int]
    strides: list[int]
    dtype: str
    offset: int = 0
    in_slot: bool = True


class Ran(msgspec.Struct, tag="ran"):
    """candidate -> judge: the call is over. `elapsed_ms` is a claim; the judge checks it against its own clock."""

    call: int
    elapsed_ms: float
    spec: list[Any]
    outputs: list[OutputMeta]


class Failed(msgspec.Struct, tag="failed"):
    """candidate -> judge: a failure it reports of itself; believed, since it can only cost the candidate."""

    outcome: str
    message: str


CandidateRequest = Load | Construct | Slots | LoadWeights | Run
CandidateReply = Loaded | Constructed | SlotsMapped | WeightsLoaded | Ran | Failed

# ---------------------------------------------------------------- judge <-> zygote


class ZygoteReady(msgspec.Struct, tag="zygote_ready"):
    """zygote -> judge: the level that candidates get and the user they run as, or why they cannot run here."""

    sandbox: str = ""
    uid: int | None = None
    error: str | None = None


class Spawn(msgspec.Struct, tag="spawn"):
    """judge -> zygote: fork a candidate into `workdir`. Two descriptors travel along: its socket and its stdout."""

    workdir: str
    memory_bytes: int


class Spawned(msgspec.Struct, tag="spawned"):
    pid: int


class KillAll(msgspec.Struct, tag="kill_all"):
    """judge -> zygote: end every process below the zygote and reap it."""


class Killed(msgspec.Struct, tag="killed"):
    pass


class Exited(msgspec.Struct, tag="exited"):
    """zygote -> judge: a candidate ended; exactly one of signal and code is set."""

    pid: int
    signal: int | None = None
    code: int | None = None


ZygoteRequest = Spawn | KillAll
ZygoteReply = ZygoteReady | Spawned | Killed | Exited

# ---------------------------------------------------------------- frames


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
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise PeerViolation(str(error)) from error

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
