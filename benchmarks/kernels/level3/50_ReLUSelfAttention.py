"""Causal self-attention with ReLU for the softmax in Triton: a linear kernel and a fused attention kernel.

Without a softmax the scores need no maximum and no sum, but nothing keeps the outputs small: sums of a thousand large
terms come out near zero. Hence three TF32 products for each, which keep nearly all of float32's digits.
"""

import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    first_m = pid // (GROUP_M * tiles_n) * GROUP_M
    group_rows = tl.minimum(tiles_m - first_m, GROUP_M)
    in_group = pid % (GROUP_M * tiles_n)
    offs_m = (first_m + in_group % group_rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (in_group // group_rows) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * k + offs_k[None, :]
    w_ptrs = w_ptr + offs_n.to(tl.int64)[None, :] * k + offs_k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        in_k = offs_k < k - start
        x = tl.load(x_ptrs, mask=(offs_m < m)[:, None] & in_k[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=in_k[:, None] & (offs_n < n)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="tf32x3")
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    offs = offs_m.to(tl.int64)[:, None] * n + offs_n[None, :]
    mask = (offs_m < m)[:, None] & (offs_n < n)[None, :]
    bias = tl.load(b_ptr + offs_n, mask=offs_n < n, other=0.0)
    acc = acc + bias[None, :]
    tl.store(y_ptr + offs, acc, mask=mask)


@triton.jit
def relu_attention_kernel(
    qkv_ptr,
    y_ptr,
    seq,
    heads,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # Long rows first: the last query blocks have the most keys.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    width = heads * HEAD_DIM
    base = qkv_ptr + batch * seq * 3 * width + head * HEAD_DIM
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    in_d = offs_d < HEAD_DIM
    q_mask = (offs_m < seq)[:, None] & in_d[None, :]
    q = tl.load(base + offs_m[:, None] * (3 * width) + offs_d[None, :], mask=q_mask, other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, (block + 1) * BLOCK_M, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        in_seq = offs_n < seq
        k_ptrs = base + width + offs_n[None, :] * (3 * width) + offs_d[:, None]
        k = tl.load(k_ptrs, mask=in_d[:, None] & in_seq[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="tf32x3") * scale
        visible = (offs_m[:, None] >= offs_n[None, :]) & in_seq[None, :]
        scores = tl.where(visible, tl.maximum(scores, 0.0), 0.0)
        v_ptrs = base + 2 * width + offs_n[:, None] * (3 * width) + offs_d[None, :]
        v = tl.load(v_ptrs, mask=in_seq[:, None] & in_d[None, :], other=0.0)
        acc = tl.dot(scores, v, acc, input_precision="tf32x3")
    y_ptrs = y_ptr + (batch * seq + offs_m[:, None]) * width + head * HEAD_DIM + offs_d[None, :]
    tl.store(y_ptrs, acc, mask=q_mask)


def linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    m, k = x.shape
    n = layer.weight.shape[0]
    y = torch.empty((m, n), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128),)
    linear_kernel[grid](
        x,
        layer.weight,
        layer.bias,
        y,
        m,
        n,
        k,
        BLOCK_M=128,
        BLOCK_N=128,
        BLOCK_K=32,
        GROUP_M=8,
        num_warps=8,
        num_stages=3,
    )
    return y


def relu_attention(qkv: torch.Tensor, batch: int, seq: int, heads: int, head_dim: int) -> torch.Tensor:
    y = torch.empty((batch * seq, heads * head_dim), device=qkv.device, dtype=qkv.dtype)
    block_m = 64
    block_d = max(triton.next_power_of_2(head_dim), 16)
    grid = (triton.cdiv(seq, block_m), batch * heads)
    relu_attention_kernel[grid](
        qkv,
        y,
        seq,
        heads,
        1.0 / math.sqrt(head_dim),
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_M=block_m,
        BLOCK_N=32,
        num_warps=4,
        num_stages=2,
    )
    return y


class ModelNew(nn.Module):
    def __init__(self, n_embd: int, n_head: int, max_seqlen: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        # The reference has an output projection that its forward does not use, and keeps its causal mask as a buffer;
        # both names stay for load_state_dict.
        self.c_proj = nn.Linear(n_embd, n_embd)
        mask = torch.ones(max_seqlen, max_seqlen).tril()
        self.register_buffer("bias", mask.view(1, 1, max_seqlen, max_seqlen))
        self.n_head = n_head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        qkv = linear(x.contiguous().view(batch * seq, width), self.c_attn)
        y = relu_attention(qkv, batch, seq, self.n_head, width // self.n_head)
        return y.view(batch, seq, width)
