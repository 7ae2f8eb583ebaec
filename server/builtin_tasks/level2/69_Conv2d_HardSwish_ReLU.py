import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A square convolution through hard-swish and then ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, in_channels, height, width) -> (batch_size, out_channels, height - 2, width - 2)."""
        return F.relu(F.hardswish(self.conv(x)))


batch_size = 64
in_channels = 16
out_channels = 64
height = 96
width = 96
kernel_size = 3


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
