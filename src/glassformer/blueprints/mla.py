"""Latent attention (https://arxiv.org/abs/2405.04434): what the configs and the blocks of its families have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from glassformer.blueprints import llama, routed
from glassformer.blueprints.blueprint import Builder, Value
from glassformer.ground.errors import ConfigError

LATENT_EPS = 1e-6  # of the norms of latents, whatever that of the others is


@dataclass(kw_only=True)
class Config(llama.Config, routed.GroupedConfig):
    interleaved_rope = True
    fixed_fields = {"mlp_bias": False}

    q_lora_rank: int | None = 1536  # None: queries have no latent
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128  # of a query and a key, what RoPE leaves as it is
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Each head has a key and a value of its own, and what RoPE turns is as large as `qk_rope_head_dim` says."""
        raw = super().prepare(raw)
        return {name: value for name, value in raw.items() if name not in ("head_dim", "qk_head_dim", "num_key_value_heads")}

    def __post_init__(self) -> None:
        self.head_dim, self.num_key_value_heads = self.qk_rope_head_dim, self.num_attention_heads
        if self.qk_rope_head_dim % 2:
            raise ConfigError(
                f"config field 'qk_rope_head_dim' is {self.qk_rope_head_dim}; RoPE rotates pairs, so it must be even."
            )
        if self.rope.partial_rotary_factor != 1:
            raise ConfigError(
                f"config field 'partial_rotary_factor' is {self.rope.partial_rotary_factor:g}; in a {self.model_type} model "
                "'qk_rope_head_dim' says what is rotated."
            )
        super().__post_init__()

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def attention_scale(self) -> float:
        """Of scores; a text that YaRN stretches has sharper ones."""
        sharper = self.rope.sharpness(self.rope.mscale_all_dim) if self.rope.mscale_all_dim else 1.0
        return float(self.qk_head_dim**-0.5) * sharper**2


FAMILY_MODULES: Mapping[str, str] = {
    **llama.FAMILY.modules,
    "self_attn": "Attention q_proj q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj",
    **routed.GROUPED_MODULES,
}


def attention(b: Builder, c: Config, h: Value, *_: Any, rotates: bool = True) -> Value:
    """What a block's heads give, joined; `rotates`: whether a part of queries and keys has RoPE."""
    own, rank, turned, rope = "self_attn", c.kv_lora_rank, c.qk_rope_head_dim, c.rope
    untouched, heads = c.qk_nope_head_dim, c.num_attention_heads
    part = partial(b.head_columns, module=own)
    if c.q_lora_rank is None:
        q = b.heads(h, f"{own}.q_proj", heads, c.qk_head_dim)
    else:
        q = b.linear(h, f"{own}.q_a_proj", c.q_lora_rank, c.attention_bias)
        q = b.heads(b.norm(q, f"{own}.q_a_layernorm", LATENT_EPS), f"{own}.q_b_proj", heads, c.qk_head_dim)
    if rotates:
        turned_query = b.rotate(part(q, first=untouched, size=turned), own, rope)
        query = b.join_heads((part(q, first=0, size=untouched), turned_query), own, "attention.query")
    else:
        query = b.identity(q, "attention.query")
    kv = b.linear(h, f"{own}.kv_a_proj_with_mqa", rank + turned, c.attention_bias)
    latent = b.norm(part(kv, first=0, size=rank), f"{own}.kv_a_layernorm", LATENT_EPS, site="attention.latent")
    shared = part(kv, first=rank, size=turned, site=None if rotates else "attention.shared_key")
    shared = b.rotate(shared, own, rope, site="attention.shared_key") if rotates else shared
    expanded = b.expand(latent, f"{own}.kv_b_proj", heads, untouched + c.v_head_dim)
    key = b.join_heads((part(expanded, first=0, size=untouched), shared), own, "attention.key")
    value = part(expanded, first=untouched, size=c.v_head_dim, site="attention.value")
    return b.attend_latent(query, key, value, latent, shared, own, c.attention_scale, c.attention_dropout)
