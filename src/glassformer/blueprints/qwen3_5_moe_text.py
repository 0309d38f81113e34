"""Qwen3.5's mixtures of experts: its layers, with many experts in each and one for all tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gated_delta, layer_types, qwen2_moe, qwen3_5_text, qwen3_moe, routed
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(gated_delta.Config, routed.Config):
    model_type = "qwen3_5_moe_text"
    title = "Qwen3.5-MoE"
    default_fields = {"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40}
    fixed_fields = {**gated_delta.Config.fixed_fields, "norm_topk_prob": True}

    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    num_experts: int = 256
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512

    @property
    def draft_fields(self) -> Mapping[str, Any]:
        """A head attends."""
        return {"layer_types": [layer_types.FULL]}

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Every layer has experts, so that files do not say how large an MLP without any would be."""
        return super().prepare({"intermediate_size": raw.get("moe_intermediate_size", cls.moe_intermediate_size), **raw})


FAMILY = replace(
    qwen3_moe.FAMILY,
    name="Qwen3_5Moe",
    heads=("causal",),
    modules={**qwen3_moe.FAMILY.modules, **qwen3_5_text.LAYERS},
    class_suffixes={"Model": "TextModel"},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return gated_delta.blueprint(c, head, mlp=qwen2_moe.with_shared)
