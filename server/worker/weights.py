"""The weights of a model: their schema, a seeded perturbation, and its running statistics saved and put back.

Perturbed weights make shortcuts fail that hold for fresh ones only (a gain of 1, a bias of 0, running statistics of 0
and 1). Touches the modules it is given, and no global random generator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from server.worker.tree import chunks, dtype_name

_SPREAD = 0.1

Statistics = dict[str, torch.Tensor | None]


class StateEntry(NamedTuple):
    """One parameter or persistent buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def state_schema(module: nn.Module) -> list[StateEntry]:
    """Parameters and persistent buffers in the order of `state_dict`; a tied parameter is there under each name.

    Two modules whose schemas are equal can exchange weights by a strict load.

    Raises:
        TreeError: one has a dtype that cannot cross between processes.
    """
    return [StateEntry(name, tuple(value.shape), dtype_name(value.dtype)) for name, value in _state(module)]


def state_tensors(module: nn.Module) -> list[torch.Tensor]:
    """The tensors that `state_schema` describes, in its order, without gradients; they share the module's memory."""
    return [value for _, value in _state(module)]


@torch.no_grad()
def perturb(module: nn.Module, seed: int) -> None:
    """Change the weights in place, by noise that follows from `seed` (and the device).

    A floating-point parameter that varies gets about a tenth of its own spread in noise and each entry a factor around
    1; a constant one (a gain of 1) gets factors only, and a zero one (a bias) noise of 0.1. Running means and
    variances change too, variances by a positive factor. No other buffer changes: it may be a mask, an index table
    or a counter. A tied parameter changes once.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def noise(like: torch.Tensor) -> torch.Tensor:
        if like.device not in generators:
            generators[like.device] = torch.Generator(device=like.device).manual_seed(seed)
        # Clamped so that a factor 1 + 0.2 n stays well above zero.
        values = torch.randn(like.shape, generator=generators[like.device], device=like.device)
        return values.clamp_(-3.0, 3.0)

    def scale_and_add(tensor: torch.Tensor, factor: float, spread: float) -> None:
        # Pieces of a tensor that is not contiguous are copies, so the sums are made apart and then copied back.
        target = tensor if tensor.is_contiguous() else tensor.contiguous()
        for _, piece in chunks(target):
            values = piece.float().mul_(1.0 + factor * noise(piece)) if factor else piece.float()
            if spread:
                values = values + spread * noise(piece)
            piece.copy_(values)
        if target is not tensor:
            tensor.copy_(target)

    for _, parameter in module.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        values = parameter.detach()
        low, high = float(values.min()), float(values.max())
        if low != high:
            scale_and_add(values, _SPREAD, _SPREAD * float(values.std()))
        elif low != 0.0:
            scale_and_add(values, 2.0 * _SPREAD, 0.0)
        else:
            scale_and_add(values, 0.0, _SPREAD)
    for name, buffer in module.named_buffers():
        if not buffer.is_floating_point() or not buffer.numel():
            continue
        if name.rpartition(".")[2] == "running_mean":
            scale_and_add(buffer, 0.0, _SPREAD)
        elif name.rpartition(".")[2] == "running_var":
            scale_and_add(buffer, 2.0 * _SPREAD, 0.0)


@torch.no_grad()
def snapshot_statistics(module: nn.Module) -> Statistics:
    """Copies of all buffers, by name: what a forward in train mode may update. Empty for a model without buffers."""
    return {
        f"{prefix}.{name}": None if buffer is None else buffer.clone()
        for prefix, part in module.named_modules()
        for name, buffer in part._buffers.items()
    }


@torch.no_grad()
def restore_statistics(module: nn.Module, statistics: Statistics) -> None:
    """Put the buffers back as `snapshot_statistics` of the same module found them; the snapshot can be used again."""
    for prefix, part in module.named_modules():
        for name, current in list(part._buffers.items()):
            if f"{prefix}.{name}" not in statistics:
                continue
            saved = statistics[f"{prefix}.{name}"]
            if saved is None:
                part._buffers[name] = None
            elif current is None or current.shape != saved.shape or current.dtype != saved.dtype:
                part._buffers[name] = saved.clone()
            else:
                current.copy_(saved)


def _state(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    # get_extra_state may put other objects there; they are not weights.
    return [(name, value) for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)]
