"""Mistral (https://arxiv.org/abs/2310.06825): Llama's shape, whose layers look back over a sliding window."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "mistral"
    title = "Mistral"
    default_fields = {
        "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
        "sliding_window": 4096,
    }  # fmt: skip
    fixed_fields = {"attention_bias": False, "mlp_bias": False}

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = None

    def window(self, layer: int) -> int | None:
        return self.sliding_window


FAMILY = replace(llama.FAMILY, name="Mistral")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head)
