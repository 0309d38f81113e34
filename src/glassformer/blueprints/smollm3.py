"""SmolLM3 (https://huggingface.co/blog/smollm3): Llama's shape; every fourth layer has no positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, qwen2
from glassformer.blueprints.blueprint import Blueprint, Head
from glassformer.ground.errors import ConfigError


@dataclass(kw_only=True)
class Config(qwen2.Config):
    model_type = "smollm3"
    title = "SmolLM3"
    default_theta = 2_000_000.0
    default_fields = {
        "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "bos_token_id": 128000,
        "eos_token_id": 128001, "pad_token_id": 128004,
    }  # fmt: skip
    fixed_fields = {}

    attention_bias: bool = False
    intermediate_size: int = 11008
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    tie_word_embeddings: bool = True
    no_rope_layers: list[int] | None = None  # 1 for each layer with RoPE, 0 for each without
    no_rope_layer_interval: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.no_rope_layers is not None and len(self.no_rope_layers) < self.num_hidden_layers:
            raise ConfigError(
                f"config field 'no_rope_layers' lists {len(self.no_rope_layers)} layers of {self.num_hidden_layers}."
            )

    @property
    def output_bias(self) -> bool:
        return self.attention_bias

    def has_rope(self, layer: int) -> bool:
        """Whether a layer's queries and keys know their positions."""
        if self.no_rope_layers is not None:
            return bool(self.no_rope_layers[layer])
        return (layer + 1) % self.no_rope_layer_interval != 0

    def window(self, layer: int) -> int | None:
        if not self.use_sliding_window or self.layer_types is not None:
            return super().window(layer)
        return None if self.has_rope(layer) else self.sliding_window


FAMILY = replace(llama.FAMILY, name="SmolLM3", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, prepare_query_key=llama.rotated_where_it_has_rope)
