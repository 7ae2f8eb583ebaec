import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A linear layer plus a learned vector, through Swish, tanh, the exact GELU and a clamp to [-1, 1]."""

    def __init__(self, in_features: int, out_features: int, add_value_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, in_features) -> (batch_size, out_features)."""
        y = F.silu(self.matmul(x) + self.add_value)
        return F.hardtanh(F.gelu(torch.tanh(y)), -1.0, 1.0)


batch_size = 2048
in_features = 1024
out_features = 4096


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, (out_features,)]
