"""Seed-OSS (https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct): Llama's shape, biases on query, key and value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "seed_oss"
    title = "Seed-OSS"
    default_fields = {
        "vocab_size": 155136, "hidden_size": 4096, "num_hidden_layers": 64, "bos_token_id": 0, "eos_token_id": 2,
        "pad_token_id": 1,
    }  # fmt: skip

    intermediate_size: int = 27648
    num_attention_heads: int = 80
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 524288
    attention_bias: bool = True
    attention_out_bias: bool = False
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1

    @property
    def output_bias(self) -> bool:
        return self.attention_out_bias

    @property
    def update_dropout(self) -> float:
        return self.residual_dropout


FAMILY = replace(llama.FAMILY, name="SeedOss", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head)
