"""Product of a wide matrix (M, K) and a column vector (K, 1)."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B)


M = 2048
K = 65536


def get_inputs() -> list[torch.Tensor]:
    # B is scaled so that the product has unit variance, whatever K is.
    return [torch.randn(M, K), torch.randn(K, 1) * K**-0.5]


def get_init_inputs() -> list[object]:
    return []
