"""Granite's mixtures of experts (https://www.ibm.com/granite), PowerMoE among them: Granite's multipliers, with experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import granite, llama, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(granite.Config, routed.Config):
    model_type = "granitemoe"
    title = "Granite MoE"
    aliases = {"num_local_experts": "num_experts"}
    fixed_fields = {"mlp_bias": False, "norm_topk_prob": True}

    norm_topk_prob: bool = True


FAMILY = replace(
    granite.FAMILY,
    name="GraniteMoe",
    stacked_experts="rows",
    modules={
        **llama.FAMILY.modules,
        "layers.*": "DecoderLayer self_attn block_sparse_moe",
        "block_sparse_moe": "MoE router experts",
        "router": "TopKRouter layer",
        "experts.*": "MLP gate_proj up_proj down_proj",
    },
)


def experts(b: Builder, c: Config, x: Value) -> Value:
    return routed.routed_mlp(b, c, x, "block_sparse_moe", "router.layer", scale=c.residual_multiplier, scaled=True)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return granite.blueprint(c, head, experts)
