"""Command R7B (https://arxiv.org/abs/2504.00698): attention and MLP side by side; RoPE only in layers with a window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.bounds import BOUNDS, Bounds
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(layer_types.Config):
    model_type = "cohere2"
    title = "Command R7B (Cohere 2)"
    default_period = 4
    default_fields = {
        "vocab_size": 256000, "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, "bos_token_id": 5,
        "eos_token_id": 255001, "pad_token_id": 0,
    }  # fmt: skip
    aliases = {"layer_norm_eps": "rms_norm_eps"}
    fixed_fields = {
        "mlp_bias": False, "use_qk_norm": False, "use_parallel_block": True, "use_gated_activation": True, "rotary_pct": 1,
    }  # fmt: skip
    bounds = {**BOUNDS, "logit_scale": Bounds(0, 1e6)}

    intermediate_size: int = 22528
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5  # of its layer norms
    tie_word_embeddings: bool = True
    logit_scale: float = 0.0625

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        prepared = super().prepare(raw)
        rope: Rope = prepared["rope"]
        return prepared | {"rope": replace(rope, interleaved=True)}

    def has_rope(self, layer: int) -> bool:
        """Whether a layer's queries and keys know their positions."""
        return self.window(layer) is not None


FAMILY = replace(
    llama.FAMILY,
    name="Cohere2",
    heads=("causal",),
    modules={**llama.FAMILY.modules, "input_layernorm": "LayerNorm", "norm": "LayerNorm"},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps = c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, how="layer", bias=False)
            a = llama.attention(b, c, b.identity(h, "attention.input"), llama.rotated_where_it_has_rope)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.attention_bias, site="attention.update")
            x = b.add(x, a, site="middle")
            h = b.identity(h, "mlp.input")
            h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act)
            x = b.add(x, b.linear(h, "mlp.down_proj", c.hidden_size, site="mlp.update"), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", how="layer", bias=False)
    return b.build_with_head(x, head, scale=c.logit_scale)
