"""Takes PyTorch's computations out of a candidate's process, before a submission's code is there.

The dispatch guard sees what one thread does through Python. Here the dispatcher itself is changed, for every thread,
mode, custom operator and C++ extension: an operator that is more than allocation, layout, copy or random numbers has no
kernel for the device any more. On CUDA it runs on the CPU instead, so that an `__init__` may still prepare its weights
with it; while a forward runs it is a violation. What computes without the dispatcher goes with functions.py.

Changes this process's dispatcher and nothing else.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from server.worker import functions, libraries
from server.worker.guard import ALLOWED, DispatchGuard

_KINDS = ("", "Sparse", "SparseCsr", "Quantized", "NestedTensor")
# Random numbers must be those that the reference draws from the same seed. The rest is how tensors are made and read.
_KEPT = ALLOWED | frozenset(
    "_copy_from _copy_from_and_resize _efficientzerotensor _local_scalar_dense _pin_memory _resize_output_ is_set_to "
    "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal random_ randperm".split()
)

# Without a kernel of any device's own, these compute all the same; on the CPU.
_COMPOSED = frozenset(
    "aten::" + name
    for name in "max_pool1d mkldnn_convolution convolution fbgemm_linear_int8_weight fbgemm_linear_fp16_weight "
    "fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_fp16_weight_fp32_activation "
    "fbgemm_linear_fp16_weight.out fbgemm_linear_fp16_weight_fp32_activation.out".split()
)

# In an object of pybind11's: the pointer to the C++ object and the holder that would end it.
_VALUE_OFFSET, _VALUE_BYTES = 16, 16


class Withdrawal:
    """Made in the process that forks candidates, it takes the operators of one device type away there. Each child then
    calls `complete`, or `undo` when it runs trusted code."""

    def __init__(self, device: torch.device) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._device = device
        self._ranges = libraries.loaded()
        taken = functions.withdrawn(torch._C._dispatch_get_all_op_names(), _KEPT)
        self._functions = functions.loaded(device.type, taken)
        key = device.type.upper()
        keys = [kind + key for kind in _KINDS]
        for name in torch._C._dispatch_get_all_op_names():
            namespace, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            if packet in _KEPT or packet.startswith("_cuda_"):
                continue
            owned = [key for key in keys if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
            for found in owned or ([key] if key == "CPU" and name in _COMPOSED else []):
                operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
                if namespace not in self._libraries:
                    self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
                # Some, such as FSDP's, are Python's own already.
                self._libraries[namespace].impl(rest, self._substitute(operator, found), found, allow_override=True)

    def complete(self) -> None:
        """Take NVIDIA's libraries and the ways past the dispatcher away too; all of it for good.

        Raises:
            OSError: the kernel refuses.
        """
        libraries.remove(self._ranges)
        functions.remove(self._functions)
        self._forget()
        # Or torch.nn.LSTM would ask for its version.
        torch.backends.cudnn.enabled = False

    def undo(self) -> None:
        """Give the operators back."""
        for library in self._libraries.values():
            library._destroy()
        self._libraries = {}

    def _forget(self) -> None:
        """Leave no object behind, here or in torch's finalizers, through which the operators could be given back."""
        for library in self._libraries.values():
            # Never freed: its end would give them back. Who finds it in memory finds it empty.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library.m))
            ctypes.memset(id(library.m) + _VALUE_OFFSET, 0, _VALUE_BYTES)
            for finalizer in [key for key in weakref.finalize._registry if key.alive]:  # type: ignore[attr-defined]
                if finalizer.peek()[0] is library:
                    finalizer.detach()
            library.m = None
        self._libraries = {}

    def __len__(self) -> int:
        return sum(len(library._op_impls) for library in self._libraries.values())

    def _substitute(self, operator: Any, key: str) -> Callable[..., Any]:
        if self._device.type == "cpu":
            kernel = torch.library.get_kernel(operator, key)
            keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
            arguments = operator._schema.arguments

            def outside(*args: Any, **kwargs: Any) -> Any:
                # A number in a tensor's place, which is one for C++ alone.
                plain = [
                    torch.tensor(value) if str(argument.type) == "Tensor" and isinstance(value, (int, float)) else value
                    for value, argument in zip(args, arguments, strict=False)
                ]
                return kernel.call_boxed(keys, *plain, **kwargs)
        else:

            def outside(*args: Any, **kwargs: Any) -> Any:
                return on_cpu(operator, self._device, args, kwargs)

        def substitute(*args: Any, **kwargs: Any) -> Any:
            DispatchGuard.forbid(operator)
            return outside(*args, **kwargs)

        return substitute


def on_cpu(operator: Any, device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `operator` gives for arguments on `device`, computed on the CPU; what it writes to is written to."""
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def there(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == device.type:
            return moved.setdefault(id(value), (value, value.detach().to("cpu", copy=True)))[1]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        original = next((original for original, copy in moved.values() if copy is value), None)
        return value.to(device) if original is None else original

    result = operator(*tree_map(there, args), **tree_map(there, kwargs))
    for number, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        written = kwargs.get(argument.name) if argument.kwarg_only else args[number] if number < len(args) else None
        for target in written if isinstance(written, (list, tuple)) else [written]:
            if isinstance(target, torch.Tensor) and id(target) in moved:
                source = moved[id(target)][1]
                if source.shape != target.shape:
                    target.resize_(source.shape)
                target.copy_(source)
    return tree_map(back, result)
