"""Falcon-H1 (https://arxiv.org/abs/2507.22448): attention and a state of Mamba-2's kind side by side in each block, both of
one norm; and multipliers nearly everywhere. That of the keys is a part of what scores are scaled by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from glassformer.blueprints import bamba, llama, state_space
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import Bounds
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief, is_finite

MULTIPLIERS = (
    "embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier",
    "ssm_in_multiplier", "ssm_out_multiplier",
)  # fmt: skip


@dataclass(kw_only=True)
class Config(llama.Config, state_space.HybridConfig):
    model_type = "falcon_h1"
    title = "Falcon-H1"
    default_fields = {
        "vocab_size": 128000, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    }  # fmt: skip
    fixed_fields = {"attn_layer_indices": None, "mamba_use_mlp": True}
    bounds = {**state_space.Config.state_bounds, **dict.fromkeys(MULTIPLIERS, Bounds(-1e6, 1e6))}
    state_fields = {
        **state_space.HybridConfig.state_fields, "output_bias": "projectors_bias", "norm": "mamba_rms_norm",
        "norm_first": "mamba_norm_before_gate", "norm_groups": "mamba_n_groups", "multipliers": "ssm_multipliers",
    }  # fmt: skip

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    mamba_d_ssm: int | None = 1024  # how wide all heads that keep a state are together; None: as `mamba_expand` says
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False  # whether there is that norm
    projectors_bias: bool = False  # of the state's projection into the stream
    embedding_multiplier: float = 1.0
    lm_head_multiplier: float = 1.0
    key_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    ssm_multipliers: list[float] = field(default_factory=lambda: [1.0] * 5)  # of gates, values, keys, queries, time steps
    mlp_multipliers: list[float] = field(default_factory=lambda: [1.0] * 2)  # of gates before their activation; of updates

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("num_key_value_heads", 0) is None:  # as many as attention heads
            raw["num_key_value_heads"] = raw.get("num_attention_heads", cls.num_attention_heads)
        ones = ("ssm_multipliers", "mlp_multipliers")
        return super().prepare({name: value for name, value in raw.items() if value is not None or name not in ones})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, count in (("ssm_multipliers", 5), ("mlp_multipliers", 2)):
            if len(numbers := getattr(self, name)) != count or not all(map(is_finite, numbers)):
                raise ConfigError(f"config field {name!r} is {brief(numbers)}; it must be {count} finite numbers.")
        self.check_states(self.state_columns)

    @property
    def state_columns(self) -> int:
        return self.mamba_d_ssm or super().state_columns


FAMILY = replace(
    bamba.FAMILY,
    name="FalconH1",
    modules={
        **bamba.MODULES,
        "layers.*": "DecoderLayer feed_forward mamba self_attn input_layernorm pre_ff_layernorm",
    },
)


def feed_forward(b: Builder, c: Config, x: Value) -> Value:
    """A gated MLP, whose gates are scaled before their activation."""
    scale, out = c.mlp_multipliers
    if scale == 1:
        return bamba.feed_forward(b, c, x, out)
    gate = b.linear(x, "feed_forward.gate_proj", c.intermediate_size, c.mlp_bias, scale=scale)
    gate = b.activate(gate, c.hidden_act, None, "feed_forward.act_fn")
    up = b.linear(x, "feed_forward.up_proj", c.intermediate_size, c.mlp_bias)
    h = b.gated(gate, up, None, "feed_forward", site="mlp.hidden")
    return b.linear(h, "feed_forward.down_proj", c.hidden_size, c.mlp_bias, site="mlp.update", scale=out)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens", scale=c.embedding_multiplier)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps)
            of_state = b.times(h, c.ssm_in_multiplier, "recurrent.input", "mamba")
            state = state_space.mixer(b, c.state_space, of_state, "mamba", c.ssm_out_multiplier, "recurrent")
            of_heads = b.times(h, c.attention_in_multiplier, "attention.input")
            a = llama.attention(b, c, of_heads, scale=c.key_multiplier / math.sqrt(c.head_dim))
            a = b.linear(
                a,
                "self_attn.o_proj",
                c.hidden_size,
                c.output_bias,
                site="attention.update",
                scale=c.attention_out_multiplier,
            )
            x = b.add(b.add(x, state), a, site="middle")
            h = b.norm(x, "pre_ff_layernorm", eps, site="mlp.input")
            x = b.add(x, feed_forward(b, c, h), site="residual")
    x = b.norm(x, f"{base}final_layernorm", eps, site="final")
    return b.build_with_head(x, head, scale=c.lm_head_multiplier)
