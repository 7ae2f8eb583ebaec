"""A 2D convolution with few input channels and a large strided window: the first layer of an image classifier."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, num_classes: int = 1000) -> None:  # num_classes: of the whole classifier, no part of this layer
        super().__init__()
        self.conv1 = nn.Conv2d(3, 96, kernel_size=11, stride=4, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1(x)


batch_size = 64
image_size = 224
num_classes = 1000


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch_size, 3, image_size, image_size)]


def get_init_inputs() -> list[object]:
    return [num_classes]
