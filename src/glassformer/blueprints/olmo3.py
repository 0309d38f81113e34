"""OLMo 3 (https://arxiv.org/abs/2512.13961): OLMo 2's shape; most layers look back over a window, with their own RoPE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import layer_types, olmo2
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(olmo2.Config, layer_types.TwoRopesConfig):
    model_type = "olmo3"
    title = "OLMo 3"
    default_period = 4
    default_theta = 500_000.0
    local_theta = 500_000.0


FAMILY = replace(olmo2.FAMILY, name="Olmo3")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return olmo2.blueprint(c, head)
