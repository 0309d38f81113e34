"""Granite (https://www.ibm.com/granite): Llama's shape with multipliers of embeddings, attention, updates and scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head
from glassformer.blueprints.bounds import BOUNDS, Bounds

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier")


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "granite"
    title = "Granite"
    bounds = {
        **BOUNDS, **dict.fromkeys(MULTIPLIERS, Bounds(0, 1e6)), "logits_scaling": Bounds(above=0, most=1e6),
    }  # fmt: skip

    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0  # what scores are divided by


FAMILY = replace(llama.FAMILY, name="Granite", heads=("causal",), scaled_vectors=True)


def blueprint(c: Config, head: Head = "causal", mlp: llama.MakeMLP | None = None) -> Blueprint:
    return llama.blueprint(
        c, head, mlp=mlp or partial(llama.gated_mlp, scale=c.residual_multiplier), update_scale=c.residual_multiplier,
        embedding_scale=c.embedding_multiplier, score_scale=1 / c.logits_scaling, scale=c.attention_multiplier,
    )  # fmt: skip
