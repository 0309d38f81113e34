"""Gemma 3, text (https://arxiv.org/abs/2503.19786): Gemma 2's shape with norms on queries and keys instead of soft caps, and
windows with a RoPE of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import gemma2, layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(gemma2.Config, layer_types.TwoRopesConfig):
    model_type = "gemma3_text"
    title = "Gemma 3 (text)"
    default_period = 6
    default_theta = 1_000_000.0
    local_theta = 10_000.0
    default_fields = {**gemma2.Config.default_fields, "vocab_size": 262208}
    fixed_fields = {"mlp_bias": False, "attn_logit_softcapping": None}

    max_position_embeddings: int = 131072
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None


FAMILY = replace(
    llama.FAMILY,
    name="Gemma3",
    class_suffixes={"Model": "TextModel", "ForSequenceClassification": "TextForSequenceClassification"},
)


def normed(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    query = b.norm(query, "self_attn.q_norm", c.rms_norm_eps, offset=1)
    key = b.norm(key, "self_attn.k_norm", c.rms_norm_eps, offset=1)
    return llama.rotated(b, c, query, key)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return gemma2.blueprint(c, head, prepare_query_key=normed)
