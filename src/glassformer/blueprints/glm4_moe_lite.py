"""GLM-4.7 Flash (https://huggingface.co/zai-org/GLM-4.7-Flash): DeepSeek-V3's shape, with a list of the layers' kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import deepseek_v3, llama, mla, routed
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(deepseek_v3.Config, routed.ListedConfig):
    model_type = "glm4_moe_lite"
    title = "GLM-4.7 Flash"
    default_fields = {
        "vocab_size": 154880, "hidden_size": 2048, "num_hidden_layers": 47, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip

    intermediate_size: int = 10240  # of layers without experts
    num_attention_heads: int = 20
    max_position_embeddings: int = 202752
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 192
    v_head_dim: int = 256
    num_experts: int = 64
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1536
    n_group: int | None = 1
    topk_group: int | None = 1
    routed_scaling_factor: float = 1.8
    first_k_dense_replace: int = 1

    @property
    def draft_fields(self) -> Mapping[str, Any]:
        """A head has experts."""
        return {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]}


FAMILY = replace(llama.FAMILY, name="Glm4MoeLite", heads=("causal",), modules=mla.FAMILY_MODULES)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return deepseek_v3.blueprint(c, head)
