"""Bamba (https://huggingface.co/blog/bamba): layers with Mamba-2's states beside attention, each with a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, state_space
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError


@dataclass(kw_only=True)
class Config(llama.Config, state_space.HybridConfig):
    model_type = "bamba"
    title = "Bamba"
    default_fields = {
        "vocab_size": 128000, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    }  # fmt: skip
    default_share = 0.5  # of each head is rotated
    bounds = state_space.Config.state_bounds

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    attn_layer_indices: list[int] | None = None  # the layers that attend

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("num_key_value_heads", 0) is None:  # as many as attention heads
            raw["num_key_value_heads"] = raw.get("num_attention_heads", cls.num_attention_heads)
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [layer for layer in self.attn_layer_indices or () if not 0 <= layer < self.num_hidden_layers]:
            raise ConfigError(
                f"config field 'attn_layer_indices' has {wrong[0]}, but the model has {self.num_hidden_layers} layers."
            )
        self.check_states(self.mamba_expand * self.hidden_size)


MODULES = {
    "": "Model embed_tokens layers final_layernorm rotary_emb",
    "layers.*": "DecoderLayer feed_forward input_layernorm pre_ff_layernorm mamba self_attn",
    "self_attn": "Attention q_proj k_proj v_proj o_proj",
    "feed_forward": "MLP gate_proj up_proj down_proj act_fn",
    "mamba": "Mixer conv1d in_proj norm out_proj",
}
FAMILY = replace(llama.FAMILY, name="Bamba", heads=("causal",), modules=MODULES)


def feed_forward(b: Builder, c: Any, x: Value, scale: float = 1.0) -> Value:
    h = b.gate(x, "feed_forward.gate_proj", "feed_forward.up_proj", c.intermediate_size, c.hidden_act, c.mlp_bias)
    return b.linear(h, "feed_forward.down_proj", c.hidden_size, c.mlp_bias, site="mlp.update", scale=scale)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input")
            if layer in (c.attn_layer_indices or ()):
                a = llama.attention(b, c, h)
                update = b.linear(a, "self_attn.o_proj", c.hidden_size, c.output_bias, site="attention.update")
            else:
                update = state_space.mixer(b, c.state_space, h, "mamba")
            x = b.add(x, update, site="middle")
            h = b.norm(x, "pre_ff_layernorm", eps, site="mlp.input")
            x = b.add(x, feed_forward(b, c, h), site="residual")
    x = b.norm(x, f"{base}final_layernorm", eps, site="final")
    return b.build_with_head(x, head)
