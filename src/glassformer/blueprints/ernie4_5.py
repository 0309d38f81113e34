"""ERNIE 4.5 (https://ernie.baidu.com/blog/posts/ernie4.5), its dense models: Llama's shape, RoPE on neighbors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "ernie4_5"
    title = "ERNIE 4.5"
    default_theta = 500_000.0
    interleaved_rope = True
    default_fields = {
        "vocab_size": 103424, "hidden_size": 1024, "num_hidden_layers": 18, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    }  # fmt: skip
    aliases = {"use_bias": "attention_bias"}
    fixed_fields = {"attention_dropout": 0.0}

    intermediate_size: int = 3072
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        self.mlp_bias = self.attention_bias  # one field says both
        super().__post_init__()


FAMILY = replace(llama.FAMILY, name="Ernie4_5", heads=("causal",))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head)
