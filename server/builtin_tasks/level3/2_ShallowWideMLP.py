import torch
import torch.nn as nn


class Model(nn.Module):
    """Few linear layers, much wider than the batch, with ReLU between them."""

    def __init__(self, input_size: int, hidden_layer_sizes: list[int], output_size: int) -> None:
        super().__init__()
        sizes = [input_size, *hidden_layer_sizes, output_size]
        layers: list[nn.Module] = []
        for index in range(len(sizes) - 1):
            if index > 0:
                layers.append(nn.ReLU())
            layers.append(nn.Linear(sizes[index], sizes[index + 1]))
        self.network = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, input_size) -> (batch_size, output_size)."""
        return self.network(x)


batch_size = 256
input_size = 1024
first_hidden_size = 8192
second_hidden_size = 4096
output_size = 1024


def get_inputs():
    return [torch.randn(batch_size, input_size)]


def get_init_inputs():
    return [input_size, [first_hidden_size, second_hidden_size], output_size]
