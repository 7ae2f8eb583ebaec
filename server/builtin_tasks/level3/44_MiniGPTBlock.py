import math

import torch
import torch.nn as nn


class NewGELU(nn.Module):
    """The tanh approximation of GELU, written out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1.0 + torch.tanh(inner))


class CausalSelfAttention(nn.Module):
    """Causal multi-head self-attention with a fused qkv projection and an output projection."""

    bias: torch.Tensor

    def __init__(self, n_embd: int, n_head: int, attn_pdrop: float, resid_pdrop: float, max_seqlen: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)
        self.register_buffer("bias", torch.ones(max_seqlen, max_seqlen).tril()[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.c_attn(x).view(batch, length, 3, self.n_head, width // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, n_head, length, head width)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = self.bias[:, :, :length, :length] == 0
        weights = self.attn_dropout(scores.masked_fill(hidden, -math.inf).softmax(dim=-1))
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.resid_dropout(self.c_proj(mixed))


class Model(nn.Module):
    """A pre-norm transformer block: attention and an MLP four times as wide, each with a residual connection."""

    def __init__(self, n_embd: int, n_head: int, attn_pdrop: float, resid_pdrop: float, max_seqlen: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(n_embd, 4 * n_embd),
                "c_proj": nn.Linear(4 * n_embd, n_embd),
                "act": NewGELU(),
                "dropout": nn.Dropout(resid_pdrop),
            }
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, seq_len, n_embd) -> the same shape."""
        x = x + self.attn(self.ln_1(x))
        hidden = self.ln_2(x)
        for name in ("c_fc", "act", "c_proj", "dropout"):
            hidden = self.mlp[name](hidden)
        return x + hidden


batch_size = 8
max_seqlen = 1024
seq_len = 512
n_embd = 512
n_head = 8
attn_pdrop = 0.0
resid_pdrop = 0.0


def get_inputs():
    return [torch.randn(batch_size, seq_len, n_embd)]


def get_init_inputs():
    return [n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen]
