"""GLM-4.5 and GLM-4.6 (https://arxiv.org/abs/2508.06471): RoPE in half a head, and experts chosen as DeepSeek-V3's are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, qwen3, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(llama.Config, routed.GroupedConfig):
    model_type = "glm4_moe"
    title = "GLM-4.5"
    default_share = 0.5
    default_fields = {"vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 46}
    fixed_fields = {"mlp_bias": False}

    intermediate_size: int = 10944  # of layers without experts
    num_attention_heads: int = 96
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 1408
    use_qk_norm: bool = False

    @property
    def draft_fields(self) -> Mapping[str, Any]:
        """A head has experts."""
        return {"first_k_dense_replace": 0}

    @property
    def output_bias(self) -> bool:
        return False


FAMILY = replace(
    llama.FAMILY,
    name="Glm4Moe",
    heads=("causal",),
    modules={**llama.FAMILY.modules, **routed.GROUPED_MODULES},
)


def some_experts(b: Builder, c: Config, x: Value) -> Value:
    return routed.grouped_mlp(b, c, x) if b.layer in c.routed_layers else llama.gated_mlp(b, c, x)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, prepare_query_key=qwen3.normed if c.use_qk_norm else llama.rotated, mlp=some_experts)
