"""Qwen3-Next: layers of the gated delta rule beside gated attention, with many experts and one for all tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gated_delta, layer_types, qwen2_moe, qwen3_5_text, qwen3_moe
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(gated_delta.Config, qwen3_moe.SomeExperts):
    model_type = "qwen3_next"
    title = "Qwen3-Next"
    default_fields = {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48}

    intermediate_size: int = 5632  # of layers without experts
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    num_experts: int = 512
    num_experts_per_tok: int = 10
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512

    @property
    def draft_fields(self) -> Mapping[str, Any]:
        """A head attends, and has experts."""
        return {"layer_types": [layer_types.FULL], "mlp_only_layers": [], "decoder_sparse_step": 1}


FAMILY = replace(
    qwen3_moe.FAMILY,
    name="Qwen3Next",
    heads=("causal", "sequence", "token"),
    modules={**qwen3_moe.FAMILY.modules, **qwen3_5_text.LAYERS},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return gated_delta.blueprint(c, head, gated_delta.fused, qwen2_moe.with_shared)
