import torch
import torch.nn as nn


class Model(nn.Module):
    """Self-attention over the pixels of a feature map, a residual connection and a layer norm over channels."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch_size, embed_dim, height, width) -> the same shape; every pixel attends to all of its image."""
        pixels = x.flatten(2).permute(2, 0, 1)  # (height * width, batch_size, embed_dim)
        attended, _ = self.attn(pixels, pixels, pixels, need_weights=False)
        return self.norm(attended + pixels).permute(1, 2, 0).reshape(x.shape)


batch_size = 16
embed_dim = 128
num_heads = 4
image_height = 32
image_width = 32


def get_inputs():
    return [2.0 * torch.randn(batch_size, embed_dim, image_height, image_width)]


def get_init_inputs():
    return [embed_dim, num_heads]
