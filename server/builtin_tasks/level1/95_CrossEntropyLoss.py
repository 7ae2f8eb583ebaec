"""Mean cross entropy of class scores (batch, classes) against class indices (batch,): one number."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(predictions, targets)


batch_size = 16384
num_classes = 4096


def get_inputs() -> list[torch.Tensor]:
    # The scale is drawn too, or the mean over so many samples would be the same every time.
    scale = 0.5 + 3.0 * torch.rand(())
    return [torch.randn(batch_size, num_classes) * scale, torch.randint(0, num_classes, (batch_size,))]


def get_init_inputs() -> list[object]:
    return []
