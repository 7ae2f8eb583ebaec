"""Layer normalisation over all dimensions but the first, with learned weight and bias."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, normalized_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ln(x)


batch_size = 256
features = 32
dim1 = 64
dim2 = 64


def get_inputs() -> list[torch.Tensor]:
    # Each sample has its own scale and offset: standard normal samples would be normalised already.
    scale = 0.5 + 2.0 * torch.rand(batch_size, 1, 1, 1)
    offset = torch.randn(batch_size, 1, 1, 1)
    return [torch.randn(batch_size, features, dim1, dim2) * scale + offset]


def get_init_inputs() -> list[object]:
    return [(features, dim1, dim2)]
