"""Phi-3 (https://arxiv.org/abs/2404.14219), Phi-4: Llama's shape, with query, key and value fused, and gate and up too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, mistral
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError

ROPES = ("default", "longrope")


@dataclass(kw_only=True)
class Config(mistral.Config):
    model_type = "phi3"
    title = "Phi-3 and Phi-4"
    default_fields = {
        "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 32000,
        "pad_token_id": 32000, "original_max_position_embeddings": 4096,
    }  # fmt: skip
    fixed_fields = {
        "attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1, "interpolate_factor": 1,
    }  # fmt: skip

    intermediate_size: int = 8192
    num_key_value_heads: int = 0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    resid_pdrop: float = 0.0

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        for name in ("rope_scaling", "rope_parameters"):
            rope = raw.get(name)
            if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) == "yarn":  # as early files call it
                raw = {**raw, name: {**rope, "rope_type": "longrope"}}
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope.kind not in ROPES:
            raise ConfigError(f"config field 'rope_type' is {self.rope.kind!r}; Phi-3 has {' or '.join(ROPES)}.")

    def to_dict(self) -> dict[str, Any]:
        """With the trained length beside RoPE's parameters too, where this family's files have it."""
        trained = {"original_max_position_embeddings": int(self.rope.original_max_position_embeddings)}
        return super().to_dict() | (trained if self.rope.kind == "longrope" else {})


FAMILY = replace(
    llama.FAMILY,
    name="Phi3",
    heads=("causal", "sequence", "token"),
    modules={**llama.FAMILY.modules, "self_attn": "Attention o_proj qkv_proj"},
)


def fused_mlp(b: Builder, c: llama.Config, x: Value, site: str | None = "mlp.update") -> Value:
    h = b.linear(x, "mlp.gate_up_proj", 2 * c.intermediate_size)
    h = b.fused_gate(h, "mlp", c.intermediate_size, c.hidden_act)
    return b.linear(h, "mlp.down_proj", c.hidden_size, site=site)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    heads, groups, size = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", c.rms_norm_eps, site="attention.input")
            h = b.linear(h, "self_attn.qkv_proj", (heads + 2 * groups) * size)
            q = b.rotate(b.fused_heads(h, "self_attn", 0, heads, size), "self_attn", c.rope, "attention.query")
            k = b.rotate(b.fused_heads(h, "self_attn", heads, groups, size), "self_attn", c.rope, "attention.key")
            v = b.fused_heads(h, "self_attn", heads + groups, groups, size, site="attention.value")
            a = b.attend(q, k, v, "self_attn", window=c.window(layer), dropout=c.attention_dropout)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, site="attention.update")
            x = b.add(x, b.dropout(a, c.resid_pdrop, "resid_attn_dropout"), site="middle")
            h = b.norm(x, "post_attention_layernorm", c.rms_norm_eps, site="mlp.input")
            h = fused_mlp(b, c, h)
            x = b.add(x, b.dropout(h, c.resid_pdrop, "resid_mlp_dropout"), site="residual")
    return b.build_with_head(b.norm(x, f"{base}norm", c.rms_norm_eps, site="final"), head, token_head="score")
