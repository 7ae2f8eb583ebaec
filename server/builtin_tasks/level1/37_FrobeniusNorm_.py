"""A tensor of any shape divided by its Frobenius norm, which is taken over all its elements."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.linalg.vector_norm(x)


batch_size = 16
features = 64
dim1 = 256
dim2 = 256


def get_inputs() -> list[torch.Tensor]:
    # The scale is drawn too, or the norm of so many numbers would be the same every time.
    scale = 0.5 + 2.0 * torch.rand(())
    return [torch.randn(batch_size, features, dim1, dim2) * scale]


def get_init_inputs() -> list[object]:
    return []
