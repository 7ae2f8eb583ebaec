import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A linear layer, divided by a constant, through the exact (erf) GELU."""

    def __init__(self, input_size: int, output_size: int, divisor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, output_size)
        self.divisor = divisor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, input_size) -> (batch_size, output_size)."""
        return F.gelu(self.linear(x) / self.divisor)


batch_size = 1024
input_size = 2048
output_size = 4096
divisor = 0.5


def get_inputs():
    return [torch.randn(batch_size, input_size)]


def get_init_inputs():
    return [input_size, output_size, divisor]
