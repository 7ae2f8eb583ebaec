import torch
import torch.nn as nn


class Model(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, input_size: int, layer_sizes: list[int], output_size: int) -> None:
        """layer_sizes: the width of each hidden layer."""
        super().__init__()
        layers: list[nn.Module] = []
        width = input_size
        for hidden_size in layer_sizes:
            layers += [nn.Linear(width, hidden_size), nn.ReLU()]
            width = hidden_size
        layers.append(nn.Linear(width, output_size))
        self.network = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, input_size) -> (batch_size, output_size)."""
        return self.network(x)


batch_size = 1024
input_size = 1024
hidden_size = 2048
output_size = 1024


def get_inputs():
    return [torch.randn(batch_size, input_size)]


def get_init_inputs():
    return [input_size, [hidden_size, hidden_size], output_size]
