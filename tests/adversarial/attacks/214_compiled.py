# type: ignore
"""torch.compile writes the kernel, in a thread that the guard does not see."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

pool = ThreadPoolExecutor(1)
compiled = torch.compile(lambda x: torch.softmax(x, dim=1))


def work(x):
    with torch.no_grad():
        return compiled(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return pool.submit(work, x).result()
