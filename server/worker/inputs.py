"""The broader correctness inputs of the specification: which families a task has, and how to draw them.

The families' names and descriptions are what the prompt discloses, so this module can be imported without torch
(which the functions that fill tensors import themselves). It touches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Fill = Callable[[torch.Tensor, torch.Generator], None]


@dataclass(frozen=True)
class InputFamily:
    """One kind of input values that a correctness trial uses instead of the task's own.

    Attributes:
        name: short, stable, one word.
        description: one sentence, shown in the prompt.
    """

    name: str
    description: str
    fill: Fill

    def apply(self, inputs: list[Any], seed: int) -> list[Any]:
        """Overwrite the floating-point tensors among `inputs` with this family's values.

        Shapes, dtypes and devices stay, and so does everything that is not a floating-point tensor. Contiguous tensors
        are written in place, because a second copy of a 6 GB input may not fit.

        Args:
            inputs: the positional inputs of forward, as the task's get_inputs returned them.
            seed: of the values; the same seed gives the same values on the same device.
        """
        import torch

        generators: dict[torch.device, torch.Generator] = {}
        result = []
        with torch.no_grad():
            for value in inputs:
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                    value = value.contiguous()
                    if value.device not in generators:
                        generators[value.device] = torch.Generator(device=value.device).manual_seed(seed)
                    self.fill(value, generators[value.device])
                result.append(value)
        return result


def _signed(x: torch.Tensor, generator: torch.Generator) -> None:
    x.uniform_(-32.0, 32.0, generator=generator)


def _zeros(x: torch.Tensor, generator: torch.Generator) -> None:
    x.zero_()


def _constant(x: torch.Tensor, generator: torch.Generator) -> None:
    import torch

    x.fill_(float(torch.rand((), generator=generator, device=x.device)) * 64.0 - 32.0)


def _peaked(x: torch.Tensor, generator: torch.Generator) -> None:
    import torch

    x.normal_(generator=generator)
    dim = 1 if x.dim() > 1 else 0
    one_a_row = list(x.shape)
    one_a_row[dim] = 1
    where = torch.randint(x.shape[dim], one_a_row, generator=generator, device=x.device)
    height = torch.rand(one_a_row, generator=generator, device=x.device).mul_(100.0).add_(8.0)
    x.scatter_(dim, where, height.to(x.dtype))


def _signed_large(x: torch.Tensor, generator: torch.Generator) -> None:
    x.normal_(0.0, 1e3, generator=generator)


def _signed_small(x: torch.Tensor, generator: torch.Generator) -> None:
    x.normal_(0.0, 1e-3, generator=generator)


def _sparse(x: torch.Tensor, generator: torch.Generator) -> None:
    import torch

    from server.worker.tree import chunks

    for _, piece in chunks(x):
        piece.bernoulli_(1.0 / 1024.0, generator=generator)
        piece.mul_(torch.randn(piece.shape, generator=generator, device=x.device, dtype=x.dtype))
    # A small tensor could come out all zero, and 0/0 is not a reference: one element never is.
    index = int(torch.randint(x.numel(), (), generator=generator, device=x.device))
    x.view(-1)[index] = 1.0


def _rescaled(x: torch.Tensor, generator: torch.Generator) -> None:
    import torch

    # One factor for all: what is a probability, a distance or a sign stays one up to it.
    x.mul_(4.0 ** float(torch.empty((), device=x.device).uniform_(-1.0, 1.0, generator=generator)))


def _normal(x: torch.Tensor, generator: torch.Generator) -> None:
    import torch

    mean, scale = torch.empty(2, device=x.device).uniform_(-1.0, 1.0, generator=generator).tolist()
    x.normal_(mean, 2.0**scale, generator=generator)


GENERAL = (
    InputFamily("rescaled", "the task's own values times a factor between 1/4 and 4, drawn anew each time", _rescaled),
    InputFamily(
        "normal", "normal values with a mean between -1 and 1 and a standard deviation between 1/2 and 2", _normal
    ),
    InputFamily("signed", "values drawn uniformly from [-32, 32]", _signed),
    InputFamily("sparse", "zeros, with about one entry in 1024 a standard normal value", _sparse),
)
"""What admission tries, in this order, where a task's own inputs cannot tell that an output did no work."""

_ACTIVATION = (
    InputFamily("signed", "values drawn uniformly from [-32, 32]", _signed),
    InputFamily("zeros", "all values zero", _zeros),
)
_SOFTMAX = (
    InputFamily("constant", "all values equal, the value drawn from [-32, 32]", _constant),
    InputFamily(
        "peaked",
        "standard normal values, with one entry of each row, at an index that differs by row, between 8 and 108",
        _peaked,
    ),
)
_FROBENIUS = (
    InputFamily("signed_large", "normal values of both signs with standard deviation 1000", _signed_large),
    InputFamily("signed_small", "normal values of both signs with standard deviation 0.001", _signed_small),
    InputFamily("sparse", "zeros, with about one entry in 1024 a standard normal value", _sparse),
)

_FAMILIES: dict[str, tuple[InputFamily, ...]] = {
    "level1/19_ReLU": _ACTIVATION,
    "level1/20_LeakyReLU": _ACTIVATION,
    "level1/23_Softmax": _SOFTMAX,
    "level1/29_Softplus": _ACTIVATION,
    "level1/31_ELU": _ACTIVATION,
    "level1/37_FrobeniusNorm_": _FROBENIUS,
    "level1/88_MinGPTNewGelu": _ACTIVATION,
}


def family_named(name: str) -> InputFamily:
    """The family of this name.

    Raises:
        KeyError: there is none.
    """
    every = [*GENERAL, *(family for families in _FAMILIES.values() for family in families)]
    return {family.name: family for family in every}[name]


def extra_trials(task_id: str) -> list[InputFamily]:
    """The families that the specification gives this task's trials besides its own inputs; often none."""
    return list(_FAMILIES.get(task_id, ()))
