"""Mean squared error between predictions and targets: one number."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (predictions - targets).pow(2).mean()


batch_size = 4096
dim = 8192


def get_inputs() -> list[torch.Tensor]:
    # The scale is drawn too, or the mean over so many numbers would be the same every time.
    scale = 0.5 + 2.0 * torch.rand(())
    return [torch.randn(batch_size, dim) * scale, torch.randn(batch_size, dim)]


def get_init_inputs() -> list[object]:
    return []
