"""Mean over one dimension, which the result no longer has."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=self.dim)


batch_size = 128
dim1 = 2048
dim2 = 512
reduce_dim = 1


def get_inputs() -> list[torch.Tensor]:
    # Scaled so that the mean has unit variance: unscaled, it would hardly differ from zero.
    return [torch.randn(batch_size, dim1, dim2) * dim1**0.5]


def get_init_inputs() -> list[object]:
    return [reduce_dim]
