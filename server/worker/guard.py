"""The dispatch guard: a TorchDispatchMode that lets a submission's forward allocate, view, cast and copy, and no more.

It runs in the candidate's process, so the judge believes nothing of it; it is there to tell an honest model that
PyTorch must not do the work. It denies by default. Operators of the submission's own extensions are allowed.

It also places outputs: allocations whose size equals an expected output are counted, and the one that turned out to be
returned is served from the judge's output slot on later calls, so that no copy is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ALLOCATION = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
    "full",
    "full_like",
    "new_full",
    "fill_",
    "zero_",
    "arange",
    # Some references draw random numbers in forward; a submission that does the same must be able to.
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "uniform_",
    "scalar_tensor",
    "resize_",
    "set_",
    "record_stream",
}
_LAYOUT = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "as_strided_",
    "cat",
    "chunk",
    "clone",
    "constant_pad_nd",
    "contiguous",
    "copy_",
    "detach",
    "detach_",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "is_pinned",
    "is_same_size",
    "lift",
    "lift_fresh",
    "movedim",
    "narrow",
    "permute",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "squeeze_",
    "stack",
    "swapaxes",
    "swapdims",
    "sym_size",
    "sym_stride",
    "sym_numel",
    "sym_storage_offset",
    "t",
    "t_",
    "_to_copy",
    "to",
    "transpose",
    "transpose_",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "unsqueeze_",
    "view",
    "view_as",
    "view_as_complex",
    "view_as_real",
}
ALLOWED = _ALLOCATION | _LAYOUT
_TORCH_NAMESPACES = {"aten", "prims", "prim", "quantized", "mkldnn", "mkl", "onednn", "inductor", "torchvision", "c10d"}


class GuardViolation(BaseException):
    """A tensor operation that a submission must do in its own kernel. Not an Exception, so that `except Exception`
    does not swallow it."""


class OutputPlacement:
    """Which allocation of a forward becomes output i, learnt from one call and used in the next.

    `views` are the judge's slots as contiguous tensors of the expected shapes.
    """

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        self._views = list(views)
        self._sizes = {view.numel() * view.element_size() for view in views if view.numel()}
        self._plan: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._count = 0

    def forget(self) -> None:
        """Drop the plan. For a new model, whose first forward may allocate what it keeps: that must not be a slot."""
        self._plan = {}

    def begin(self) -> None:
        self._seen = {}
        self._count = 0

    def offer(
        self, shape: Sequence[int], dtype: torch.dtype | None, device: torch.device | None
    ) -> torch.Tensor | None:
        """The slot for an allocation of this shape if it is planned to become an output; counts it either way."""
        numel = 1
        for extent in shape:
            numel *= int(extent)
        dtype = dtype or torch.get_default_dtype()
        if numel * dtype.itemsize not in self._sizes:
            return None
        self._count += 1
        index = self._plan.get(self._count)
        if index is None:
            return None
        view = self._views[index]
        device = device or torch.device("cpu")
        if dtype != view.dtype or numel != view.numel() or device.type != view.device.type:
            return None
        return view.view(list(shape))

    def note(self, result: torch.Tensor) -> None:
        """Remember which counted allocation this storage came from."""
        if result.numel() * result.element_size() in self._sizes:
            self._seen[result.untyped_storage().data_ptr()] = self._count

    def learn(self, outputs: Sequence[torch.Tensor]) -> None:
        """After a call: plan for the outputs that came from a counted allocation, keep what already lies in a slot."""
        slots = {view.data_ptr(): index for index, view in enumerate(self._views)}
        plan = {}
        for index, output in enumerate(outputs[: len(self._views)]):
            pointer = output.untyped_storage().data_ptr()
            if pointer in self._seen:
                plan[self._seen[pointer]] = index
            elif output.data_ptr() in slots:
                plan.update({count: i for count, i in self._plan.items() if i == slots[output.data_ptr()]})
        self._plan = plan


class DispatchGuard(TorchDispatchMode):
    """Active around one forward. `violation` holds the first rejected operator's sentence, even if it was swallowed."""

    _running: ClassVar[DispatchGuard | None] = None

    def __init__(self, device: torch.device, placement: OutputPlacement | None, deny: bool) -> None:
        super().__init__()
        self._device = device
        self._placement = placement
        self._deny = deny
        self.violation: str | None = None

    @classmethod
    def forbid(cls, operator: Any) -> None:
        """Reject `operator` if a submission's forward is running, in whatever thread.

        Raises:
            GuardViolation: one is.
        """
        if cls._running is not None:
            cls._running._reject(operator)

    def __enter__(self) -> DispatchGuard:
        super().__enter__()
        if self._deny:
            DispatchGuard._running = self
        return self

    def __exit__(self, *details: Any) -> None:
        DispatchGuard._running = None
        super().__exit__(*details)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._deny:
            self._check(func, args, kwargs)
        if self._placement is not None and func.namespace == "aten":
            request = _allocation(func, args, kwargs)
            if request is not None:
                slot = self._placement.offer(*request)
                if slot is not None:
                    return slot.zero_() if "zeros" in func.overloadpacket.__name__ else slot
                result = func(*args, **kwargs)
                self._placement.note(result)
                return result
        return func(*args, **kwargs)

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        if func.namespace not in _TORCH_NAMESPACES:
            return
        name = func.overloadpacket.__name__
        tensors = [value for value in _flat(args, kwargs) if isinstance(value, torch.Tensor)]
        if name in ALLOWED and not self._leaves_device(name, tensors, kwargs):
            return
        if self._device.type == "cuda" and tensors and all(value.device.type == "cpu" for value in tensors):
            return  # an autotuner's statistics; the inputs cannot get there
        if self._device.type == "cuda" and not tensors and _on_cpu(kwargs):
            return
        self._reject(func)

    def _reject(self, func: Any) -> NoReturn:
        self.violation = self.violation or _sentence(func, func.overloadpacket.__name__)
        raise GuardViolation(self.violation)

    def _leaves_device(self, name: str, tensors: list[torch.Tensor], kwargs: Any) -> bool:
        if self._device.type != "cuda" or not tensors:
            return False
        if name == "copy_":
            return tensors[0].device.type == "cpu" and len(tensors) > 1 and tensors[1].device.type == "cuda"
        if name in ("_to_copy", "to"):
            target = kwargs.get("device")
            return target is not None and torch.device(target).type == "cpu" and tensors[0].device.type == "cuda"
        return False


def _flat(args: Any, kwargs: Any) -> list[Any]:
    flat: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return flat


def _on_cpu(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


def _sentence(func: Any, name: str) -> str:
    if name in ("_local_scalar_dense", "_to_copy", "copy_", "to", "item"):
        return (
            f"forward read tensor data on the host (torch operator {func}). Keep the work on the device: "
            "no .item(), .cpu(), .tolist() or bool(tensor) in forward."
        )
    return (
        f"forward called the torch operator {func}. Do this computation in your own kernel: forward may only allocate, "
        "change layout, cast, copy on the device and launch kernels."
    )


def _allocation(func: Any, args: Any, kwargs: Any) -> tuple[Any, torch.dtype | None, torch.device | None] | None:
    """(shape, dtype, device) when `func` allocates a contiguous tensor, else None."""
    name = func.overloadpacket.__name__
    if kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        return None
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    if name in ("empty", "zeros"):
        return (args[0], dtype, device) if args and isinstance(args[0], (list, tuple, torch.Size)) else None
    if name in ("empty_like", "zeros_like", "new_empty", "new_zeros"):
        like = args[0]
        if name.endswith("_like"):
            if not like.is_contiguous():
                return None
            shape = like.shape
        else:
            shape = args[1]
        return shape, dtype or like.dtype, device or like.device
    if name in ("empty_strided", "new_empty_strided"):
        offset = 1 if name.startswith("new") else 0
        shape, strides = args[offset], args[offset + 1]
        if list(strides) != _contiguous_strides(shape):
            return None
        if offset:
            dtype, device = dtype or args[0].dtype, device or args[0].device
        return shape, dtype, device
    return None


def _contiguous_strides(shape: Sequence[int]) -> list[int]:
    strides: list[int] = []
    step = 1
    for extent in reversed(list(shape)):
        strides.append(step)
        step *= max(1, int(extent))
    return strides[::-1]


def warm_up() -> None:
    """Dispatch one operator. The first dispatch of a process imports some 800 modules of torch, which takes seconds."""
    with DispatchGuard(torch.device("cpu"), None, False):
        torch.empty(1)
