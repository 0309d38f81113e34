"""Gemma 3, text (https://arxiv.org/abs/2503.19786): norms before and after, windows with a RoPE of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder
from glassformer.blueprints.config import Head
from glassformer.blueprints.rope import Rope
from glassformer.errors import ConfigError
from glassformer.typecheck import brief

KINDS = {"sliding_attention": "local", "full_attention": "default"}  # a layer's type: the name of its RoPE


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type: ClassVar[str] = "gemma3_text"
    default_fields: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 262208, "hidden_size": 2304, "num_hidden_layers": 26, "intermediate_size": 9216,
        "num_attention_heads": 8, "num_key_value_heads": 4, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    aliases: ClassVar[Mapping[str, str]] = {"hidden_activation": "hidden_act"}
    fixed_fields: ClassVar[Mapping[str, Any]] = {"mlp_bias": False}

    hidden_act: str = "gelu_pytorch_tanh"
    head_dim: int = 256
    max_position_embeddings: int = 131072
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None
    tie_word_embeddings: bool = True
    local_rope: Rope = field(default_factory=Rope)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        ropes = raw.pop("rope_parameters", None) or {}
        if not isinstance(ropes, Mapping):
            raise ConfigError(f"config field 'rope_parameters' is {brief(ropes)}; it must be an object.")
        full = ropes if "rope_type" in ropes else ropes.get("full_attention")
        local = {"rope_parameters": ropes.get("sliding_attention"), "rope_theta": raw.pop("rope_local_base_freq", 10_000.0)}
        layers = raw.get("num_hidden_layers")
        period = raw.pop("sliding_window_pattern", None) or raw.get("_sliding_window_pattern") or 6
        if raw.get("layer_types") is None and isinstance(layers, int) and isinstance(period, int):
            raw["layer_types"] = [
                "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)
            ]
        prepared = super().prepare({"rope_theta": 1_000_000.0, **raw, "rope_parameters": full})
        return prepared | {"local_rope": Rope.read(local)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.local_rope.check_head_size(self.head_dim)
        kinds = self.layer_types or []
        if len(kinds) != self.num_hidden_layers or not set(kinds) <= KINDS.keys():
            raise ConfigError(
                f"config field 'layer_types' must name one of {', '.join(KINDS)} for each of the "
                f"{self.num_hidden_layers} layers, not {brief(kinds)}."
            )

    def rope_name(self, layer: int) -> str:
        """The name of a layer's RoPE."""
        return KINDS[(self.layer_types or [])[layer]]

    def window(self, layer: int) -> int | None:
        return self.sliding_window if self.rope_name(layer) == "local" else None

    @property
    def scale(self) -> float:
        return float(self.query_pre_attn_scalar**-0.5)

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        del raw["local_rope"]
        rope = {"sliding_attention": self.local_rope.raw(), "full_attention": self.rope.raw()}
        return raw | {"rope_parameters": rope}


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b = Builder(c)
    base = "" if head == "base" else "model."
    groups, size, eps, bias = c.num_key_value_heads, c.head_dim, c.rms_norm_eps, c.attention_bias
    x = b.embed(f"{base}embed_tokens", scale=c.hidden_size**0.5)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            rope = c.local_rope if c.rope_name(layer) == "local" else c.rope
            h = b.norm(x, "input_layernorm", eps, site="attention.input", offset=1)
            q = b.norm(b.heads(h, "self_attn.q_proj", c.num_attention_heads, size, bias), "self_attn.q_norm", eps, offset=1)
            k = b.norm(b.heads(h, "self_attn.k_proj", groups, size, bias), "self_attn.k_norm", eps, offset=1)
            q = b.rotate(q, "self_attn", rope, site="attention.query")
            k = b.rotate(k, "self_attn", rope, site="attention.key")
            v = b.heads(h, "self_attn.v_proj", groups, size, bias, site="attention.value")
            a = b.attend(q, k, v, "self_attn", window=c.window(layer), scale=c.scale)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, bias)
            x = b.add(x, b.norm(a, "post_attention_layernorm", eps, site="attention.update", offset=1), site="middle")
            h = b.norm(x, "pre_feedforward_layernorm", eps, site="mlp.input", offset=1)
            h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act)
            h = b.linear(h, "mlp.down_proj", c.hidden_size)
            x = b.add(x, b.norm(h, "post_feedforward_layernorm", eps, site="mlp.update", offset=1), site="residual")
    return b.build_with_head(b.norm(x, f"{base}norm", eps, site="final", offset=1), head)
