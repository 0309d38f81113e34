"""OLMo 2 (https://arxiv.org/abs/2501.00656): norms after attention and MLP, not before, and over all heads together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "olmo2"
    title = "OLMo 2"
    default_fields = {
        "vocab_size": 50304, "hidden_size": 4096, "num_hidden_layers": 32, "eos_token_id": 50279, "pad_token_id": 1,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False, "clip_qkv": None}

    rms_norm_eps: float = 1e-5


FAMILY = replace(llama.FAMILY, name="Olmo2")


def normed_heads(b: Builder, c: llama.Config, h: Value, name: str, heads: int) -> Value:
    """Heads of a projection that is normed as a whole."""
    projected = b.linear(h, f"self_attn.{name}_proj", heads * c.head_dim, c.attention_bias)
    return b.fused_heads(b.norm(projected, f"self_attn.{name}_norm", c.rms_norm_eps), "self_attn", 0, heads, c.head_dim)


def blueprint(
    c: llama.Config, head: Head = "causal", make_heads: llama.MakeHeads = normed_heads, **options: Any
) -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            x = block(b, c, x, make_heads=make_heads, **options)
    return b.build_with_head(b.norm(x, f"{base}norm", c.rms_norm_eps, site="final"), head, token_head="score")


def block(b: Builder, c: llama.Config, x: Value, make_heads: llama.MakeHeads = normed_heads, **options: Any) -> Value:
    eps = c.rms_norm_eps
    h = b.identity(x, "attention.input")
    a = llama.attention(b, c, h, make_heads=make_heads, **options)
    a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.attention_bias)
    x = b.add(x, b.norm(a, "post_attention_layernorm", eps, site="attention.update"), site="middle")
    h = llama.gated_mlp(b, c, b.identity(x, "mlp.input"), site=None)
    return b.add(x, b.norm(h, "post_feedforward_layernorm", eps, site="mlp.update"), site="residual")
