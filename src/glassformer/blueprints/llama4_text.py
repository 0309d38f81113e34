"""Llama 4's text models: attention inside chunks, layers without positions between them, experts beside a shared one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief
from glassformer.ops.positions import PositionScale

CHUNKED, FULL = "chunked_attention", "full_attention"
STRETCHED = ("yarn", "longrope", "dynamic")  # kinds of RoPE that may make queries and keys longer


@dataclass(kw_only=True)
class Config(llama.Config, routed.Config):
    model_type = "llama4_text"
    title = "Llama 4 (text)"
    default_fields = {"vocab_size": 202048, "hidden_size": 5120, "num_hidden_layers": 48}
    default_theta = 500_000.0
    interleaved_rope = True
    aliases = {"num_local_experts": "num_experts"}
    fixed_fields = {"mlp_bias": False, "norm_topk_prob": False}

    intermediate_size: int = 8192  # of an expert
    intermediate_size_mlp: int = 16384  # of layers without experts
    num_attention_heads: int = 40
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 4096 * 32
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    num_experts: int = 16
    num_experts_per_tok: int = 1
    moe_layers: list[int] | None = None  # those with experts; None: every so many
    interleave_moe_layer_step: int = 1
    use_qk_norm: bool = True
    no_rope_layers: list[int] | None = None  # 1 for each layer with RoPE, 0 for each without
    no_rope_layer_interval: int = 4
    attention_chunk_size: int | None = 8192
    layer_types: list[str] | None = None
    attn_temperature_tuning: bool = True
    floor_scale: int = 8192
    attn_scale: float = 0.1

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """What files leave out: which layers have no RoPE, and so look at everything, and which have experts."""
        raw = super().prepare(raw)
        raw |= {"no_rope_layers": raw.get("no_rope_layers") or None}
        if type(raw.get("attn_temperature_tuning")) is int:  # as some files have it
            raw["attn_temperature_tuning"] = bool(raw["attn_temperature_tuning"])
        return raw

    def __post_init__(self) -> None:
        layers = range(self.num_hidden_layers)
        if self.no_rope_layers is None:
            self.no_rope_layers = [int((layer + 1) % self.no_rope_layer_interval != 0) for layer in layers]
        if self.moe_layers is None:
            step = self.interleave_moe_layer_step
            self.moe_layers = list(range(step - 1, self.num_hidden_layers, step))
        if self.layer_types is None:
            self.layer_types = [CHUNKED if rotated else FULL for rotated in self.no_rope_layers]
        super().__post_init__()
        if len(self.no_rope_layers) < len(layers):
            raise ConfigError(f"config field 'no_rope_layers' lists {len(self.no_rope_layers)} layers of {len(layers)}.")
        if len(self.layer_types) < len(layers) or not set(self.layer_types) <= {CHUNKED, FULL}:
            raise ConfigError(
                f"config field 'layer_types' must name one of {CHUNKED}, {FULL} for each of the {len(layers)} layers, not "
                f"{brief(self.layer_types)}."
            )
        if self.use_qk_norm and self.rope.kind in STRETCHED:
            raise ConfigError(
                f"config field 'rope_parameters' has RoPE of the kind {self.rope.kind!r}, which is not supported beside "
                "norms of queries and keys ('use_qk_norm')."
            )

    @property
    def output_bias(self) -> bool:
        return self.attention_bias

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_hidden_layers) if layer in (self.moe_layers or ()))

    def has_rope(self, layer: int) -> bool:
        return bool((self.no_rope_layers or [])[layer])

    def chunk(self, layer: int) -> int | None:
        """How many tokens the chunks of a layer have; None: there are none."""
        return self.attention_chunk_size if (self.layer_types or [])[layer] == CHUNKED else None

    def position_scale(self, layer: int) -> PositionScale | None:
        """By which a layer's scores grow with the position of their query."""
        if self.has_rope(layer) or not self.attn_temperature_tuning:
            return None
        return PositionScale(self.attn_scale, self.floor_scale, first=1)


FAMILY = replace(
    llama.FAMILY,
    name="Llama4",
    heads=("causal",),
    modules={
        "": "Model embed_tokens layers norm rotary_emb",
        "layers.*": "TextDecoderLayer self_attn feed_forward",
        "self_attn": "TextAttention q_proj k_proj v_proj o_proj",
        "feed_forward": "TextMLP",
        "feed_forward[experts]": "TextMoe experts router shared_expert",
        "shared_expert": "TextMLP",
        "experts.*": "TextMLP gate_proj up_proj down_proj",
    },
    class_suffixes={"Model": "TextModel"},
    stacked_experts="side by side",
)


def normed(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    """Heads are normed without weights after RoPE, which is the same before it: turning changes no length."""
    if c.use_qk_norm and c.has_rope(b.layer):
        query, key = (
            b.norm(x, f"self_attn.{name}_norm", c.rms_norm_eps, weight=False) for x, name in ((query, "q"), (key, "k"))
        )
    return llama.rotated_where_it_has_rope(b, c, query, key)


def attention(b: Builder, c: Config, h: Value, *_: Any) -> Value:
    return llama.attention(b, c, h, normed, chunk=c.chunk(b.layer), position_scale=c.position_scale(b.layer))


def feed_forward(b: Builder, c: Config, x: Value) -> Value:
    """An expert gets a token times its share, and what it makes of that counts as it is."""
    module = "feed_forward"
    if b.layer in c.routed_layers:
        return routed.routed_mlp(
            b, c, x, module, "router", shared="shared_expert", shared_size=c.intermediate_size, how="sigmoid",
            shares_inputs=True,
        )  # fmt: skip
    h = b.gate(x, f"{module}.gate_proj", f"{module}.up_proj", c.intermediate_size_mlp, c.hidden_act, name="activation_fn")
    return b.linear(h, f"{module}.down_proj", c.hidden_size, site="mlp.update")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=feed_forward, attend=attention)
