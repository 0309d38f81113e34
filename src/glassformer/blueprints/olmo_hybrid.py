"""OLMo Hybrid: three layers of the gated delta rule for each that attends as OLMo 3's do, often without positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gated_delta, llama, olmo2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value

STATE_EPS = 1e-5  # of the norm of what states give, whatever that of the others is


@dataclass(kw_only=True)
class Config(gated_delta.Config):
    model_type = "olmo_hybrid"
    title = "OLMo Hybrid"
    default_fields = {"vocab_size": 100352, "hidden_size": 3840, "num_hidden_layers": 32}
    default_share = 1.0

    intermediate_size: int = 11008
    num_attention_heads: int = 30
    head_dim: int = 0
    max_position_embeddings: int = 65536
    pad_token_id: int | None = 100277
    eos_token_id: int | list[int] | None = 100257
    linear_allow_neg_eigval: bool = True  # whether what is written is taken twice, so that a state may turn round
    linear_key_head_dim: int = 0  # 0: by default three quarters of the stream, all heads together
    linear_value_head_dim: int = 0  # 0: twice that of keys
    linear_num_key_heads: int = 0  # 0: as many as attention heads
    linear_num_value_heads: int = 0
    rotates: bool = True  # whether layers that attend know positions

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Files without RoPE say so by its base, which is null; a model has at least one layer that attends."""
        raw = {name: value for name, value in raw.items() if value is not None or not name.startswith("linear_")}
        rope, layers = raw.get("rope_parameters"), raw.get("num_hidden_layers")
        if isinstance(rope, Mapping) and "rope_theta" in rope and rope["rope_theta"] is None:
            raw |= {"rope_parameters": None, "rotates": False}
        if raw.get("layer_types") is None and isinstance(layers, int) and 0 < layers < cls.default_period:
            raw["layer_types"] = [cls.other_kind] * (layers - 1) + ["full_attention"]
        return super().prepare(raw)

    def __post_init__(self) -> None:
        self.linear_num_key_heads = self.linear_num_key_heads or self.num_attention_heads
        self.linear_num_value_heads = self.linear_num_value_heads or self.num_attention_heads
        self.linear_key_head_dim = self.linear_key_head_dim or int(0.75 * self.hidden_size / self.linear_num_key_heads)
        self.linear_value_head_dim = self.linear_value_head_dim or 2 * self.linear_key_head_dim
        super().__post_init__()

    def has_rope(self, layer: int) -> bool:
        return self.rotates

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        if not raw.pop("rotates"):
            raw["rope_parameters"] = {"rope_type": "default", "rope_theta": None}
        return raw


FAMILY = replace(
    llama.FAMILY,
    name="OlmoHybrid",
    heads=("causal",),
    modules={
        **llama.FAMILY.modules,
        "layers.*": "AttentionDecoderLayer self_attn mlp",
        "layers.*[linear_attn]": "LinearAttentionDecoderLayer linear_attn mlp",
        "linear_attn": "GatedDeltaNet q_proj k_proj v_proj a_proj b_proj g_proj o_proj conv1d o_norm",
    },
)


def recurrent(b: Builder, c: Config, h: Value) -> Value:
    """A layer with a state, whose parts have a projection each."""
    keys, values, heads = c.key_columns, c.value_columns, c.linear_num_value_heads
    query, key, value, step, write, gate = (
        b.linear(h, f"linear_attn.{name}_proj", width)
        for name, width in (("q", keys), ("k", keys), ("v", values), ("a", heads), ("b", heads), ("g", values))
    )
    mixed = b.join((query, key, value), "linear_attn")
    return gated_delta.recurrent(b, c, mixed, gate, write, step, "o_norm", "o_proj", STATE_EPS, c.linear_allow_neg_eigval)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            x = attending(b, c, x) if c.is_full(layer) else remembering(b, c, x)
    return b.build_with_head(b.norm(x, f"{base}norm", eps, site="final"), head, token_head="score")


def attending(b: Builder, c: Config, x: Value) -> Value:
    """Norms come after attention and MLP."""
    return olmo2.block(b, c, x, prepare_query_key=llama.rotated_where_it_has_rope)


def remembering(b: Builder, c: Config, x: Value) -> Value:
    """Norms come before the state and the MLP."""
    h = b.norm(x, "input_layernorm", c.rms_norm_eps, site="attention.input")
    x = b.add(x, recurrent(b, c, h), site="middle")
    h = b.norm(x, "post_attention_layernorm", c.rms_norm_eps, site="mlp.input")
    return b.add(x, llama.gated_mlp(b, c, h), site="residual")
