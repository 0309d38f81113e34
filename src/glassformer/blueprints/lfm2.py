"""LFM2 (https://arxiv.org/abs/2511.23404): layers of a short convolution between two gates, and a few that attend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

PROJECTIONS = ("w1", "w3", "w2")  # of an MLP: gate, up and down
ALL_BUT_MLP = {
    "": "Model embed_tokens layers rotary_emb embedding_norm",
    "layers.*": "DecoderLayer self_attn conv feed_forward operator_norm ffn_norm",
    "self_attn": "Attention q_proj k_proj v_proj out_proj q_layernorm k_layernorm",
    "layers.*.conv": "ShortConv conv in_proj out_proj",
}


@dataclass(kw_only=True)
class Layers(layer_types.TwoKindsConfig):
    """Of both kinds of layers, and how files name them."""

    default_period = 1
    other_kind = "conv"
    default_theta = 1_000_000.0
    aliases = {"norm_eps": "rms_norm_eps"}
    fixed_fields = {"mlp_bias": False, "attention_bias": False}

    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    max_position_embeddings: int = 128_000
    rms_norm_eps: float = 1e-5
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True
    conv_bias: bool = False
    conv_L_cache: int = 3  # how many tokens a convolution reads  # noqa: N815

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Its first files have names of their own, and list the layers that attend."""
        former = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
        raw = {**raw, **{name: raw[old] for old, name in former.items() if raw.get(old) is not None}}
        attending, layers = raw.get("full_attn_idxs"), raw.get("num_hidden_layers")
        if raw.get("layer_types") is None and attending is not None and isinstance(layers, int):
            if not isinstance(attending, list):
                raise ConfigError(f"config field 'full_attn_idxs' is {brief(attending)}; it must list layers by index.")
            raw["layer_types"] = [layer_types.FULL if layer in attending else cls.other_kind for layer in range(layers)]
        return super().prepare({name: value for name, value in raw.items() if name not in (*former, "full_attn_idxs")})


@dataclass(kw_only=True)
class Config(Layers):
    model_type = "lfm2"
    title = "LFM2"
    default_fields = {"vocab_size": 65536, "hidden_size": 2560, "num_hidden_layers": 32}

    intermediate_size: int = 12288
    block_multiple_of: int = 256
    block_ffn_dim_multiplier: float = 1.0
    block_auto_adjust_ff_dim: bool = True  # whether an MLP has two thirds of so many neurons, by the two numbers above

    @property
    def inner(self) -> int:
        """How many neurons an MLP has."""
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        size, multiple = int(2 * self.intermediate_size / 3), self.block_multiple_of
        return multiple * ((int(self.block_ffn_dim_multiplier * size) + multiple - 1) // multiple)


FAMILY = Family(
    name="Lfm2",
    heads=("causal",),
    modules={**ALL_BUT_MLP, "feed_forward": "MLP w1 w3 w2"},
)


def normed(b: Builder, c: Layers, query: Value, key: Value) -> tuple[Value, Value]:
    query = b.norm(query, "self_attn.q_layernorm", c.rms_norm_eps)
    key = b.norm(key, "self_attn.k_layernorm", c.rms_norm_eps)
    return llama.rotated(b, c, query, key)


def short_convolution(b: Builder, c: Layers, h: Value) -> Value:
    """What passes a first gate is summed over a few tokens, and passes a second."""
    size, module = c.hidden_size, "conv"
    both = b.linear(h, f"{module}.in_proj", 3 * size, c.conv_bias)
    opening, closing, x = (b.columns(both, module, (size, part * size, size, 1)) for part in range(3))
    h = b.causal_conv(b.gated(opening, x, None, module), f"{module}.conv", c.conv_L_cache, None, c.conv_bias)
    return b.linear(b.gated(closing, h, None, module), f"{module}.out_proj", size, c.conv_bias, site="attention.update")


def attention(b: Builder, c: Layers, h: Value) -> Value:
    a = llama.attention(b, c, h, normed)
    return b.linear(a, "self_attn.out_proj", c.hidden_size, site="attention.update")


def gated_mlp(b: Builder, c: Any, x: Value) -> Value:
    gate, up, down = (f"feed_forward.{name}" for name in PROJECTIONS)
    return b.linear(b.gate(x, gate, up, c.inner, c.hidden_act), down, c.hidden_size, site="mlp.update")


def blueprint(c: Any, head: Head = "causal", mlp: llama.MakeMLP = gated_mlp) -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "operator_norm", eps, site="attention.input")
            x = b.add(x, (attention if c.is_full(layer) else short_convolution)(b, c, h), site="middle")
            h = b.norm(x, "ffn_norm", eps, site="mlp.input")
            x = b.add(x, mlp(b, c, h), site="residual")
    x = b.norm(x, f"{base}embedding_norm", eps, site="final")
    return b.build_with_head(x, head)
