"""The untrusted side: runs a submission's code in a process of its own and does what the judge asks, call by call.

Everything here can be rewritten by the submission it serves, so nothing it says is believed except a failure: it has no
expected output, no seed of the inputs, no reference, and its times count only where the judge's clock agrees.
Runs in a child forked from the zygote, after sandbox.enter.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import sys
import time
import traceback
import weakref
from types import ModuleType
from typing import Any

import torch

from server.worker import layout, tree
from server.worker.connection import Connection, PeerClosed
from server.worker.device import Device, Slot
from server.worker.ended import ended_by
from server.worker.guard import DispatchGuard, GuardViolation, OutputPlacement
from server.worker.protocol import (
    GATE_BYTES,
    CandidateReply,
    CandidateRequest,
    Construct,
    Constructed,
    Failed,
    Load,
    Loaded,
    LoadWeights,
    OutputMeta,
    Queued,
    Ran,
    Run,
    SlotLayout,
    Slots,
    SlotsMapped,
    WeightsLoaded,
)
from server.worker.symbols import Extensions
from server.worker.task_module import construct, seed_all
from server.worker.weights import restore_statistics, snapshot_statistics, state_schema

MODULE_NAME = "submission"
# Made once, in the process that forks candidates.
_OPERATORS = frozenset(name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
MAX_MESSAGE_CHARS = 6000
_COMPILE_ERRORS = {
    "CompilationError",
    "CompileTimeAssertionFailure",
    "UnsupportedLanguageConstruct",
    "OutOfResources",
    "PTXASError",
    "InterpreterError",
}


class _Failure(Exception):
    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


class Candidate:
    """One submission's process. Each method answers one request of the judge."""

    def __init__(self, device: Device, connection: Connection) -> None:
        self._device = device
        self._connection = connection
        self._class: type | None = None
        self._deny = True
        self._model: torch.nn.Module | None = None
        self._statistics: Any = None
        self._slots: list[Slot] = []
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        self._expected: list[SlotLayout] = []
        self._weights: list[torch.Tensor] = []
        self._gate: torch.Tensor | None = None
        self._placement: OutputPlacement | None = None
        self._extensions = Extensions(_OPERATORS)
        self._returned: list[torch.Tensor] = []

    def handle(self, request: CandidateRequest, fds: list[int]) -> CandidateReply:
        if isinstance(request, Load):
            return self._load(request)
        if isinstance(request, Slots):
            return self._map(request, fds)
        if isinstance(request, Construct):
            return self._construct(request)
        if isinstance(request, LoadWeights):
            return self._load_weights(request)
        return self._run(request)

    def _load(self, request: Load) -> Loaded:
        self._deny = request.guard
        if request.ghost:
            _silence_kernels()
        path = os.path.abspath(request.path)
        with open(path, encoding="utf-8", newline="") as handle:
            source = handle.read()
        # Compiled from text, so that a coding cookie cannot make it another program than the one that was checked.
        code = compile(source, path, "exec", dont_inherit=True)
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        module = ModuleType(MODULE_NAME)
        module.__file__ = path
        sys.modules[MODULE_NAME] = module
        exec(code, module.__dict__)
        found = getattr(module, request.class_name, None)
        if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
            raise _Failure(
                "missing_model", f"The module defines no class {request.class_name} that derives from torch.nn.Module."
            )
        self._class = found
        self._check_extensions()
        return Loaded()

    def _check_extensions(self) -> None:
        if self._deny and (found := self._extensions.computation()) is not None:
            raise GuardViolation(
                f"The extension calls {found}, which is PyTorch's. Do this computation in your own kernel."
            )

    def _map(self, request: Slots, fds: list[int]) -> SlotsMapped:
        sizes = [entry.nbytes for entry in (*request.inputs, *request.outputs)]
        sizes += [layout.weights_nbytes(request.weights), GATE_BYTES]
        blocks = []
        for nbytes, fd in zip(sizes, fds, strict=True):
            slot = self._device.import_slot(fd, nbytes)
            os.close(fd)
            self._slots.append(slot)
            assert slot.tensor is not None
            blocks.append(slot.tensor)
        split = len(request.inputs)
        self._inputs = [layout.view(block, entry) for block, entry in zip(blocks, request.inputs, strict=False)]
        self._outputs = [
            layout.view(block, entry) for block, entry in zip(blocks[split:], request.outputs, strict=False)
        ]
        self._weights = layout.weight_views(blocks[-2], request.weights)
        self._gate = blocks[-1]
        self._expected = request.outputs
        contiguous = [view.as_strided(view.shape, layout.contiguous_strides(view.shape)) for view in self._outputs]
        self._placement = OutputPlacement(contiguous) if self._deny else None
        return SlotsMapped()

    def _construct(self, request: Construct) -> Constructed:
        assert self._class is not None
        self._model = None
        if self._placement is not None:
            self._placement.forget()
        self._device.empty_cache()
        arguments = tree.unflatten(request.init, [])
        model = construct(self._class, arguments, request.seed, self._device.torch_device)
        self._model = model.train(not request.eval_mode)
        self._statistics = snapshot_statistics(model)
        if _holds_plain_tensors(model):
            return Constructed(None)
        try:
            return Constructed([(name, list(shape), dtype) for name, shape, dtype in state_schema(model)])
        except tree.TreeError:  # of a dtype that cannot be sent: packed weights
            return Constructed(None)

    def _load_weights(self, request: LoadWeights) -> WeightsLoaded:
        assert self._model is not None
        state = dict(zip(request.names, self._weights, strict=True))
        self._model.load_state_dict(state, strict=True)
        self._statistics = snapshot_statistics(self._model)
        self._device.synchronize()
        return WeightsLoaded()

    def _run(self, request: Run) -> Ran:
        assert self._model is not None and self._gate is not None
        if request.ghost:
            _silence_kernels()
        if request.retune:
            for tuner in list(_autotuners):
                tuner.cache.clear()
        began = time.perf_counter()
        self._device.wait_gate(self._gate, request.gate)
        arguments = tree.unflatten(request.inputs, self._inputs)
        if request.seed is not None:
            seed_all(request.seed)
        placement = self._placement
        if placement is not None:
            placement.begin()
        guard = DispatchGuard(self._device.torch_device, placement, self._deny)
        with torch.no_grad():
            started = self._device.start()
            try:
                with guard:
                    result = self._model(*arguments)
            finally:
                # Also where it was swallowed, or became another error.
                if guard.violation is not None:
                    raise GuardViolation(guard.violation)
            spec, tensors = tree.flatten(result)
            metas = self._place(tensors)
            finished = self._device.finish(started)
            self._device.signal(self._gate, request.gate)
            queued_ms = (time.perf_counter() - began) * 1e3
            if request.announce:
                self._connection.send(Queued(request.call))
            elapsed_ms = self._device.elapsed_ms(finished)
        if request.announce:  # it may have compiled
            self._check_extensions()
        self._returned = tensors
        return Ran(request.call, elapsed_ms, queued_ms, tree.packed(spec), metas)

    def settle(self) -> None:
        """After a call and outside the judge's clock: learn where outputs came from, put running statistics back."""
        if self._placement is not None:
            self._placement.learn(self._returned)
        self._returned = []
        if self._model is not None and self._statistics:
            restore_statistics(self._model, self._statistics)

    def _place(self, tensors: list[torch.Tensor]) -> list[OutputMeta]:
        """Make every output lie in its slot; those the guard placed already do."""
        metas = []
        for index, tensor in enumerate(tensors):
            if tensor.device.type != self._device.torch_device.type or tensor.layout != torch.strided:
                raise _Failure(
                    "wrong_structure",
                    f"Output {index} is a {tensor.layout} tensor on {tensor.device}; return a dense tensor on "
                    f"{self._device.torch_device.type}.",
                )
            meta = OutputMeta(list(tensor.shape), list(tensor.stride()), tree.dtype_name(tensor.dtype), 0, False)
            metas.append(meta)
            if not self._deny or index >= len(self._outputs):
                continue  # the baseline's outputs are not judged; extra outputs fail in the judge
            target, expected = self._outputs[index], self._expected[index]
            if meta.shape != expected.shape or meta.dtype != expected.dtype:
                continue
            meta.in_slot = True
            plain = not (tensor.is_conj() or tensor.is_neg())
            if plain and tensor.data_ptr() == target.data_ptr() and layout.is_dense(meta.shape, meta.strides):
                continue
            target.copy_(tensor)
            meta.strides = expected.strides
        return metas


def _holds_plain_tensors(model: torch.nn.Module) -> bool:
    """Whether a module keeps tensors that a load of its state would miss: weights it packed while it was built."""
    for module in model.modules():
        if any(module._buffers.get(name) is not None for name in module._non_persistent_buffers_set):
            return True
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            if isinstance(value, dict):
                value = list(value.values())
            if any(
                isinstance(entry, torch.Tensor) for entry in (value if isinstance(value, (list, tuple)) else [value])
            ):
                return True
    return False


def classify(error: BaseException, phase: type) -> str:
    """The outcome (a value of kernel_env.models.Outcome) for an exception raised while serving a request."""
    text = str(error)
    if isinstance(error, _Failure):
        return error.outcome
    if isinstance(error, GuardViolation):
        return "format_violation"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
        return "out_of_memory"
    if isinstance(error, SystemExit):
        return "exited"
    if isinstance(error, tree.TreeError) and phase is Run:
        return "wrong_structure"
    if isinstance(error, SyntaxError):
        return "syntax_error"
    if type(error).__name__ in _COMPILE_ERRORS or "Error building extension" in text or "Ninja is required" in text:
        return "compile_error"
    if phase is Load:
        return "import_error" if isinstance(error, ImportError) else "compile_error"
    return "construction_error" if phase in (Construct, LoadWeights) else "runtime_error"


def describe(error: BaseException) -> str:
    """The message and the submission's own frames of the traceback, bounded."""
    if isinstance(error, (_Failure, GuardViolation, tree.TreeError)):
        return str(error)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.basename(frame.filename) == "submission.py"
    ]
    lines = "".join(traceback.format_list(frames[-6:]))
    text = "".join(traceback.format_exception_only(error)).strip()
    if len(text) > MAX_MESSAGE_CHARS:
        text = f"{text[: MAX_MESSAGE_CHARS // 2]}\n[...]\n{text[-MAX_MESSAGE_CHARS // 2 :]}"
    text = f"{text}\n{lines}".strip()
    return text.encode("utf-8", "replace").decode()


_autotuners: weakref.WeakSet[Any] = weakref.WeakSet()


def _adapt_autotune(interpreted: bool) -> None:
    """Remember every @triton.autotune; in the interpreter, which has no driver to time with, take the first
    configuration."""
    with contextlib.suppress(ImportError):  # C++ submissions run without triton
        from triton.runtime.autotuner import Autotuner

        plain = Autotuner.__init__

        def remember(self: Any, *args: Any, **values: Any) -> None:
            plain(self, *args, **values)
            _autotuners.add(self)

        Autotuner.__init__ = remember
        if interpreted:
            Autotuner._bench = lambda self, *args, config, **meta: 0.0


def _silence_kernels() -> None:
    """Make every launch of a Triton kernel do nothing."""
    with contextlib.suppress(ImportError):
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        for kind in (JITFunction, InterpretedFunction):
            setattr(kind, "run", lambda self, *args, **values: None)  # noqa: B010


def serve(connection: Connection, device: Device) -> None:
    """Answer the judge until it closes the connection."""
    _adapt_autotune(interpreted=device.kind == "cpu")
    candidate = Candidate(device, connection)
    # The context takes longer to create than the judge needs to send the first request. An error shows again later.
    with contextlib.suppress(Exception):
        torch.zeros(1, device=device.torch_device)
    while True:
        try:
            request = connection.recv(accept_fds=True)
        except PeerClosed:
            return
        try:
            reply = candidate.handle(request, connection.take_fds())
        except BaseException as error:
            reply = Failed(classify(error, type(request)), describe(error), ended_by(error))
        if isinstance(reply, Ran) and not math.isfinite(reply.elapsed_ms):
            reply.elapsed_ms = 0.0
        connection.send(reply)
        if isinstance(reply, Ran):
            with contextlib.suppress(Exception):
                candidate.settle()
