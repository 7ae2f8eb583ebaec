"""Running sum along one dimension."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=self.dim)


batch_size = 4096
length = 16384
dim = 1


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch_size, length)]


def get_init_inputs() -> list[object]:
    return [dim]
