"""A task's reference source as a module: its inputs, and its model built from a seed.

Executes reference source, which is trusted: only the judge does this. `construct` and `seed_all` are also what the
candidate process uses for ModelNew, so that both sides build under the same random state. Touches torch's, Python's
and numpy's global random generators (never restored), `sys.modules` and `linecache`. TF32 flags stay as they are.
"""

from __future__ import annotations

import hashlib
import linecache
import random
import sys
import types
from typing import Any

import torch
from torch import nn

from server.worker.tree import TreeError, flatten, unflatten

# Faults of the device, not of the task: the judge must see them as they are.
_DEVICE_ERRORS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
_INIT_SEED = 0  # of get_init_inputs: both sides must see the same values, so it is the same at every call


class TaskError(Exception):
    """The task's source cannot be used. The message is a sentence that names the task and the reason."""


def seed_all(seed: int) -> None:
    """Seed torch (all devices), Python's random, and numpy where it is imported, with a 63-bit seed."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def construct(model_class: type[nn.Module], init_inputs: list[Any], seed: int, device: torch.device | str) -> nn.Module:
    """`model_class(*init_inputs)` on `device`, under KernelBench's contract: seeded right before, no gradients.

    The judge calls it with Model and the candidate with ModelNew; the mode is left as the constructor set it.
    """
    with torch.no_grad(), torch.device(device):
        init_inputs = move(init_inputs, device)
        seed_all(seed)
        return model_class(*init_inputs).to(device)


def move(values: list[Any], device: torch.device | str) -> list[Any]:
    """The values with every tensor on `device`. Raises TreeError for a value that `tree.flatten` rejects."""
    spec, tensors = flatten(values)
    return unflatten(spec, [tensor.to(device) for tensor in tensors])


def draws_dropout(module: nn.Module) -> bool:
    """Whether some part of the module drops values at random in train mode.

    True for a dropout layer with p > 0, and for any part with an attribute that is called a dropout rate and is
    positive: attention, recurrent layers, and models that call F.dropout with a rate of their own.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            if part.p > 0:
                return True
            continue
        for name, value in vars(part).items():
            if "drop" in name.lower() and type(value) in (int, float) and value > 0:
                return True
    return False


class TaskModule:
    """A loaded task. Make one with `load_task`."""

    def __init__(self, task_id: str, module: types.ModuleType) -> None:
        self.task_id = task_id
        self.module = module
        self._eval_mode: bool | None = None

    def init_inputs(self) -> list[Any]:
        """The arguments of Model's constructor, the same at every call; tensors are on the CPU.

        Raises:
            TaskError: get_init_inputs raised, or gave something that cannot be sent to another process.
        """
        return self._call("get_init_inputs", _INIT_SEED, "cpu")

    def draw_inputs(self, seed: int, device: torch.device | str) -> list[Any]:
        """The positional inputs of forward, drawn by the task's own get_inputs on `device` after seeding with `seed`.

        Raises:
            TaskError: get_inputs raised, or gave something that cannot be sent to another process.
            torch.OutOfMemoryError, torch.AcceleratorError: they do not fit, or the device failed.
        """
        return self._call("get_inputs", seed, device)

    def construct(self, seed: int, device: torch.device | str) -> nn.Module:
        """A Model on `device`, built after seeding with `seed`; in train mode unless the task uses eval mode.

        Raises:
            TaskError: the constructor raised.
            torch.OutOfMemoryError, torch.AcceleratorError: it does not fit, or the device failed.
        """
        init_inputs = self.init_inputs()
        try:
            model = construct(self.module.Model, init_inputs, seed, device)
        except _DEVICE_ERRORS:
            raise
        except Exception as error:
            raise self._error("Model's constructor", error) from error
        self._eval_mode = draws_dropout(model)
        return model.train(not self._eval_mode)

    @property
    def uses_eval_mode(self) -> bool:
        """Whether the models of this task run in eval mode, because it has dropout with p > 0.

        Known once a model has been constructed; builds one on the CPU if none has been.
        """
        if self._eval_mode is None:
            self.construct(_INIT_SEED, "cpu")
        return bool(self._eval_mode)

    def _call(self, function: str, seed: int, device: torch.device | str) -> list[Any]:
        seed_all(seed)
        try:
            with torch.no_grad(), torch.device(device):
                values = getattr(self.module, function)()
        except _DEVICE_ERRORS:
            raise
        except Exception as error:
            raise self._error(function, error) from error
        if not isinstance(values, list | tuple):
            raise TaskError(f"{function} of task {self.task_id} must return a list, not a {type(values).__name__}")
        try:
            return move(list(values), device)
        except TreeError as error:
            raise self._error(function, error) from error

    def _error(self, what: str, error: Exception) -> TaskError:
        return TaskError(f"{what} of task {self.task_id} failed: {type(error).__name__}: {error}")


def load_task(task_id: str, source: str) -> TaskModule:
    """Execute a reference source as a module.

    The module is in `sys.modules` under a name made from the id and the source, and its lines are in `linecache`, so
    that tracebacks and `inspect` show them. Loading the same source again replaces it.

    Raises:
        TaskError: the source does not run, or lacks Model (an nn.Module), get_inputs or get_init_inputs.
    """
    digest = hashlib.sha256(f"{task_id}\0{source}".encode()).hexdigest()[:16]
    name = f"kernel_env_task_{digest}"
    filename = f"<task {task_id} {digest}>"
    module = types.ModuleType(name)
    module.__file__ = filename
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[name] = module
    try:
        exec(compile(source, filename, "exec"), module.__dict__)
        model = getattr(module, "Model", None)
        if not (isinstance(model, type) and issubclass(model, nn.Module)):
            raise TaskError(f"task {task_id} does not define a class Model that is an nn.Module")
        for function in ("get_inputs", "get_init_inputs"):
            if not callable(getattr(module, function, None)):
                raise TaskError(f"task {task_id} does not define a function {function}")
    except BaseException as error:
        del sys.modules[name]
        linecache.cache.pop(filename, None)
        if isinstance(error, Exception) and not isinstance(error, TaskError):
            raise TaskError(f"task {task_id} could not be loaded: {type(error).__name__}: {error}") from error
        raise
    return TaskModule(task_id, module)
