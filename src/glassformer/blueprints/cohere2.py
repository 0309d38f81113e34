"""Command R7B (https://arxiv.org/abs/2504.00698): Command R's shape; RoPE only in layers with a window."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import cohere, layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(cohere.Config, layer_types.Config):
    model_type = "cohere2"
    title = "Command R7B (Cohere 2)"
    default_period = 4
    default_theta = 10_000.0
    fixed_fields = {
        **cohere.Config.fixed_fields, "use_parallel_block": True, "use_gated_activation": True, "rotary_pct": 1,
    }  # fmt: skip

    def has_rope(self, layer: int) -> bool:
        """Whether a layer's queries and keys know their positions."""
        return self.window(layer) is not None


FAMILY = replace(cohere.FAMILY, name="Cohere2")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return cohere.blueprint(c, head, llama.rotated_where_it_has_rope)
