import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Causal multi-head self-attention with ReLU in place of softmax and no output projection."""

    bias: torch.Tensor

    def __init__(self, n_embd: int, n_head: int, max_seqlen: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.register_buffer("bias", torch.ones(max_seqlen, max_seqlen).tril()[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, seq_len, n_embd) -> the same shape; a position attends to itself and those before it."""
        batch, length, width = x.shape
        qkv = self.c_attn(x).view(batch, length, 3, self.n_head, width // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, n_head, length, head width)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = self.bias[:, :, :length, :length] == 0
        weights = F.relu(scores.masked_fill(hidden, -math.inf))
        return (weights @ v).transpose(1, 2).reshape(batch, length, width)


batch_size = 8
max_seqlen = 1024
seq_len = 512
n_embd = 512
n_head = 8


def get_inputs():
    # Without softmax the output grows with the cube of the input: at this scale TF32 stays inside the tolerance.
    return [torch.randn(batch_size, seq_len, n_embd) * 0.4]


def get_init_inputs():
    return [n_embd, n_head, max_seqlen]
