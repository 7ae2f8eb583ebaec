import torch
import torch.nn as nn


class Model(nn.Module):
    """A linear layer whose output is scaled by a constant and added to itself, unscaled."""

    def __init__(self, in_features: int, out_features: int, scaling_factor: float) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, in_features) -> (batch_size, out_features)."""
        y = self.matmul(x)
        residual = y.clone()
        return y * self.scaling_factor + residual


batch_size = 4096
in_features = 1024
out_features = 2048
scaling_factor = 0.75


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, scaling_factor]
