"""Softmax configured by a frozen dataclass, an enum and a NamedTuple, fully annotated."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn


class Strategy(enum.Enum):
    ONE_BLOCK = "one_block"


class Shape(NamedTuple):
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    block: int
    num_warps: int = 4
    strategy: Strategy = Strategy.ONE_BLOCK

    @classmethod
    def for_shape(cls, shape: Shape) -> LaunchConfig:
        block = triton.next_power_of_2(shape.cols)
        return cls(block=block, num_warps=min(max(block // 512, 1), 16))


@triton.jit
def row_softmax(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=-float("inf"))
    tl.store(y_ptr + row * cols + offs, tl.softmax(x), mask=offs < cols)


class ModelNew(nn.Module):
    config: LaunchConfig | None

    def __init__(self) -> None:
        super().__init__()
        self.config = None

    def forward(self, x: Tensor) -> Tensor:
        shape = Shape(*x.shape)
        if self.config is None:
            self.config = LaunchConfig.for_shape(shape)
        match self.config.strategy:
            case Strategy.ONE_BLOCK:
                y = torch.empty_like(x)
                row_softmax[(shape.rows,)](x, y, shape.cols, BLOCK=self.config.block, num_warps=self.config.num_warps)
                return y
