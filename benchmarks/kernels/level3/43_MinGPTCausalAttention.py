"""Causal self-attention in Triton: fused linear kernels and flash attention, all on TF32 tensor cores."""

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
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    offs = offs_m.to(tl.int64)[:, None] * n + offs_n[None, :]
    mask = (offs_m < m)[:, None] & (offs_n < n)[None, :]
    bias = tl.load(b_ptr + offs_n, mask=offs_n < n, other=0.0)
    tl.store(y_ptr + offs, acc + bias[None, :], mask=mask)


@triton.jit
def causal_attention_kernel(
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
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, (block + 1) * BLOCK_M, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        in_seq = offs_n < seq
        k_ptrs = base + width + offs_n[None, :] * (3 * width) + offs_d[:, None]
        k = tl.load(k_ptrs, mask=in_d[:, None] & in_seq[None, :], other=0.0)
        # The exponentials are base 2; scale carries log2(e).
        scores = tl.dot(q, k) * scale
        visible = (offs_m[:, None] >= offs_n[None, :]) & in_seq[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, axis=1)
        v_ptrs = base + 2 * width + offs_n[:, None] * (3 * width) + offs_d[None, :]
        v = tl.load(v_ptrs, mask=in_seq[:, None] & in_d[None, :], other=0.0)
        acc = tl.dot(p, v, acc * shrink[:, None])
        top = new_top
    y_ptrs = y_ptr + (batch * seq + offs_m[:, None]) * width + head * HEAD_DIM + offs_d[None, :]
    tl.store(y_ptrs, acc / total[:, None], mask=q_mask)


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


def causal_attention(qkv: torch.Tensor, batch: int, seq: int, heads: int, head_dim: int) -> torch.Tensor:
    y = torch.empty((batch * seq, heads * head_dim), device=qkv.device, dtype=qkv.dtype)
    block_m = 64
    scale = 1.4426950408889634 / math.sqrt(head_dim)
    block_d = triton.next_power_of_2(head_dim)
    grid = (triton.cdiv(seq, block_m), batch * heads)
    causal_attention_kernel[grid](
        qkv,
        y,
        seq,
        heads,
        scale,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_M=block_m,
        BLOCK_N=32,
        num_warps=4,
        num_stages=2,
    )
    return y


class ModelNew(nn.Module):
    def __init__(self, n_embd: int, n_head: int, attn_pdrop: float, resid_pdrop: float, max_seqlen: int) -> None:
        super().__init__()
        if attn_pdrop or resid_pdrop:
            raise ValueError("this kernel has no dropout")
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        # The reference keeps its causal mask as a buffer. The kernel needs none; the name stays for load_state_dict.
        mask = torch.ones(max_seqlen, max_seqlen).tril()
        self.register_buffer("bias", mask.view(1, 1, max_seqlen, max_seqlen))
        self.n_head = n_head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        flat = x.contiguous().view(batch * seq, width)
        qkv = linear(flat, self.c_attn)
        y = causal_attention(qkv, batch, seq, self.n_head, width // self.n_head)
        return linear(y, self.c_proj).view(batch, seq, width)
