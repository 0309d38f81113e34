"""Helium (https://huggingface.co/kyutai/helium-1-2b): Llama's shape, RoPE on neighbors, no bias on attention's output."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "helium"
    title = "Helium"
    default_theta = 100_000.0
    interleaved_rope = True
    default_fields = {
        "vocab_size": 48000, "hidden_size": 2560, "num_hidden_layers": 24, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 3,
    }  # fmt: skip

    intermediate_size: int = 7040
    num_attention_heads: int = 20
    num_key_value_heads: int = 20
    head_dim: int = 128
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_joined_heads()

    @property
    def output_bias(self) -> bool:
        return False


FAMILY = replace(llama.FAMILY, name="Helium", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head)
