"""Gemma (https://arxiv.org/abs/2403.08295): Llama's shape with scaled embeddings and norms that add one to their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head

SPECIAL_TOKENS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "gemma"
    title = "Gemma"
    default_fields = {
        "vocab_size": 256000, "hidden_size": 3072, "num_hidden_layers": 28, "intermediate_size": 24576,
        "num_attention_heads": 16, **SPECIAL_TOKENS,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False}

    hidden_act: str = "gelu_pytorch_tanh"
    head_dim: int = 256
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("hidden_act") == "gelu":  # in the first files, which mean the approximation
            raw = {**raw, "hidden_act": "gelu_pytorch_tanh"}
        return super().prepare(raw)


FAMILY = replace(llama.FAMILY, name="Gemma", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, norm={"offset": 1}, embedding_scale=c.hidden_size**0.5)
