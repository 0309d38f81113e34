"""Qwen3 (https://arxiv.org/abs/2505.09388): Llama's shape with a norm on each head's query and key before RoPE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    model_type: ClassVar[str] = "qwen3"

    head_dim: int = 128
    intermediate_size: int = 22016
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        if raw.pop("mlp_bias", False):
            raise ConfigError("config field 'mlp_bias' is true; Qwen3's MLP has no biases.")
        return raw

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, kind in enumerate(self.layer_types or ()):
            if kind not in (FULL, SLIDING):
                raise ConfigError(f"config field 'layer_types' has {kind!r} for layer {number}; known: {FULL}, {SLIDING}.")
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"config field 'layer_types' lists {len(self.layer_types)} layers of {self.num_hidden_layers}."
            )

    def window(self, layer: int) -> int | None:
        if not self.use_sliding_window:
            return None
        if self.layer_types is not None:
            return self.sliding_window if self.layer_types[layer] == SLIDING else None
        return self.sliding_window if layer >= self.max_window_layers else None


def normed(b: Builder, c: llama.Config, query: Value, key: Value) -> tuple[Value, Value]:
    query = b.norm(query, "self_attn.q_norm", c.rms_norm_eps)
    key = b.norm(key, "self_attn.k_norm", c.rms_norm_eps)
    return llama.rotated(b, c, query, key)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, place=normed)
