"""Arcee (https://huggingface.co/arcee-ai/AFM-4.5B): Llama's shape, with an MLP without a gate, of squared ReLUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "arcee"
    title = "Arcee"
    default_fields = {
        "vocab_size": 32000, "hidden_size": 2560, "num_hidden_layers": 32, "bos_token_id": 128000, "eos_token_id": 128001,
    }  # fmt: skip

    intermediate_size: int = 18432
    hidden_act: str = "relu2"
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5


FAMILY = replace(llama.FAMILY, name="Arcee", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=llama.plain_mlp)
