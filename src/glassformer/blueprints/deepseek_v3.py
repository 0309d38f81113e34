"""DeepSeek-V3 and R1 (https://arxiv.org/abs/2412.19437): latent attention, and experts in groups beside shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, mla, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(mla.Config):
    model_type = "deepseek_v3"
    title = "DeepSeek-V3 and R1"
    default_fields = {
        "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    fixed_fields = {**mla.Config.fixed_fields, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}

    intermediate_size: int = 18432  # of layers without experts
    num_attention_heads: int = 128
    max_position_embeddings: int = 4096
    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    n_group: int | None = 8
    topk_group: int | None = 4
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: int = 3
    rope_interleave: bool = True

    def __post_init__(self) -> None:
        self.rope = replace(self.rope, interleaved=self.rope_interleave)
        super().__post_init__()

    @property
    def draft_fields(self) -> Mapping[str, Any]:
        """A head has experts."""
        return {"first_k_dense_replace": 0}


FAMILY = replace(llama.FAMILY, name="DeepseekV3", heads=("causal", "sequence", "token"), modules=mla.FAMILY_MODULES)


def some_experts(b: Builder, c: Any, x: Value) -> Value:
    return routed.grouped_mlp(b, c, x) if b.layer in c.routed_layers else llama.gated_mlp(b, c, x)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=some_experts, attend=mla.attention)
