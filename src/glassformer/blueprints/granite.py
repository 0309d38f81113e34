"""Granite (https://www.ibm.com/granite): Llama's shape with multipliers of embeddings, attention, updates and scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.bounds import BOUNDS, Bounds

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier")


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "granite"
    title = "Granite"
    bounds = {
        **BOUNDS, **dict.fromkeys(MULTIPLIERS, Bounds(0, 1e6)), "logits_scaling": Bounds(above=0, most=1e6),
    }  # fmt: skip

    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0  # what scores are divided by


FAMILY = replace(llama.FAMILY, name="Granite", heads=("causal",), scaled_vectors=True)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    hidden, factor = c.hidden_size, c.residual_multiplier
    x = b.embed(f"{base}embed_tokens", scale=c.embedding_multiplier)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", c.rms_norm_eps, site="attention.input")
            a = llama.attention(b, c, h, scale=c.attention_multiplier)
            a = b.linear(a, "self_attn.o_proj", hidden, c.output_bias, site="attention.update", scale=factor)
            x = b.add(x, a, site="middle")
            h = b.norm(x, "post_attention_layernorm", c.rms_norm_eps, site="mlp.input")
            h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act, c.mlp_bias)
            h = b.linear(h, "mlp.down_proj", hidden, c.mlp_bias, site="mlp.update", scale=factor)
            x = b.add(x, h, site="residual")
    x = b.norm(x, f"{base}norm", c.rms_norm_eps, site="final")
    return b.build_with_head(x, head, scale=1 / c.logits_scaling)
