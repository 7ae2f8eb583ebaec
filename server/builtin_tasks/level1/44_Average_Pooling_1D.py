"""Mean over sliding windows of a signal, per channel; padding counts as zeros."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.avg_pool = nn.AvgPool1d(kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.avg_pool(x)


batch_size = 64
in_channels = 128
input_length = 8192
kernel_size = 8
stride = 1
padding = 4


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch_size, in_channels, input_length)]


def get_init_inputs() -> list[object]:
    return [kernel_size, stride, padding]
