"""Product of two square matrices: C = A B."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B)


N = 2048


def get_inputs() -> list[torch.Tensor]:
    # B is scaled so that the product has unit variance: one missing tile of the inner dimension then shows.
    return [torch.randn(N, N), torch.randn(N, N) * N**-0.5]


def get_init_inputs() -> list[object]:
    return []
