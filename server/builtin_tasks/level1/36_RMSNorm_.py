"""RMS normalisation over dimension 1: x / sqrt(mean(x^2) + eps), without a learned scale."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=1, keepdim=True)
        return x / torch.sqrt(mean_square + self.eps)


batch_size = 16
features = 64
dim1 = 256
dim2 = 256


def get_inputs() -> list[torch.Tensor]:
    # Each sample has its own scale, which the normalisation has to remove.
    scale = 0.5 + 2.0 * torch.rand(batch_size, 1, 1, 1)
    return [torch.randn(batch_size, features, dim1, dim2) * scale]


def get_init_inputs() -> list[object]:
    return [features]
