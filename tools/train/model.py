"""The model: a small Llama, with the weight names and maths of Hugging Face's LlamaForCausalLM.

Pre-norm blocks of grouped-query attention with rotate-half RoPE and a SwiGLU feed-forward, RMSNorm, no biases, and the
embedding also used as output projection.  The training loss is computed in here, so that torch.compile sees it.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = dict(vocab=8192, dim=512, layers=8, heads=8, kv_heads=2, head_dim=64, ffn=1408, theta=500000.0)
NORM_EPS = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), NORM_EPS)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        dim, q_dim, kv_dim = c["dim"], c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]

        def linear(n_in, n_out):
            return nn.Linear(n_in, n_out, bias=False)

        self.attn_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.q, self.k, self.v = linear(dim, q_dim), linear(dim, kv_dim), linear(dim, kv_dim)
        self.o = linear(q_dim, dim)
        self.gate, self.up, self.down = linear(dim, c["ffn"]), linear(dim, c["ffn"]), linear(c["ffn"], dim)

    def forward(self, x, cos, sin):
        """x [batch][tokens][dim]; cos, sin [tokens][head_dim]"""
        batch, tokens, _ = x.shape
        c = self.c
        half = c["head_dim"] // 2

        def heads(y, n):
            return y.view(batch, tokens, n, c["head_dim"]).transpose(1, 2)

        def rope(y):
            return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

        y = self.attn_norm(x)
        q, k, v = heads(self.q(y), c["heads"]), heads(self.k(y), c["kv_heads"]), heads(self.v(y), c["kv_heads"])
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, -1))
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embedding = nn.Embedding(c["vocab"], c["dim"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = RMSNorm(c["dim"])
        for name, p in self.named_parameters():
            if p.dim() == 2:  # projections back into the residual stream start smaller, by depth
                residual = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c["layers"]) if residual else 0.02)

    def hidden(self, ids):
        """[batch][tokens] -> final-norm hidden state [batch][tokens][dim], in bfloat16."""
        head_dim = self.c["head_dim"]
        freq = 1 / (self.c["theta"] ** (torch.arange(0, head_dim, 2, device=ids.device).float() / head_dim))
        angle = torch.outer(torch.arange(ids.shape[1], device=ids.device).float(), freq)
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)
        x = self.embedding(ids).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)

    def forward(self, ids, targets, weights):
        """(mean loss weighted by `weights`, loss of each token, flat)"""
        x = self.hidden(ids)
        x = x.view(-1, x.shape[-1])
        logits = F.linear(x, self.embedding.weight.to(x.dtype)).float()
        loss = F.cross_entropy(logits, targets.reshape(-1), reduction="none")
        w = weights.reshape(-1)
        return (loss * w).sum() / w.sum(), loss


def optimizers(model, lr):
    """Muon for the weight matrices of the blocks, AdamW for the embedding and the norms."""
    if not hasattr(torch.optim, "Muon"):
        raise SystemExit("torch.optim.Muon is missing: this recipe needs torch 2.9 or newer")
    matrices, rest = [], []
    for name, p in model.named_parameters():
        (matrices if p.dim() == 2 and "embedding" not in name else rest).append(p)
    fused = next(model.parameters()).is_cuda
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused),
    ]
