"""Qwen2 (https://arxiv.org/abs/2407.10671): Llama's shape with biases on query, key and value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head
from glassformer.ground.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "qwen2"
    title = "Qwen2"
    default_fields = {"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32}
    fixed_fields = {"attention_bias": True, "mlp_bias": False}

    attention_bias: bool = True
    intermediate_size: int = 22016
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for index, kind in enumerate(self.layer_types or ()):
            if kind not in (FULL, SLIDING):
                raise ConfigError(f"config field 'layer_types' has {kind!r} for layer {index}; known: {FULL}, {SLIDING}.")
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"config field 'layer_types' lists {len(self.layer_types)} layers of {self.num_hidden_layers}."
            )

    @property
    def output_bias(self) -> bool:
        return False

    def window(self, layer: int) -> int | None:
        if not self.use_sliding_window:
            return None
        if self.layer_types is not None:
            return self.sliding_window if self.layer_types[layer] == SLIDING else None
        return self.sliding_window if layer >= self.max_window_layers else None


FAMILY = replace(llama.FAMILY, name="Qwen2")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head)
