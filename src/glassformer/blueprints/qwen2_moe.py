"""Qwen2's mixtures of experts (https://arxiv.org/abs/2407.10671): beside those chosen, one for all tokens, by a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, qwen2, qwen3_moe, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, Bounds
from glassformer.blueprints.qwen2 import FULL, SLIDING


@dataclass(kw_only=True)
class Config(qwen2.Config, qwen3_moe.SomeExperts):
    model_type = "qwen2_moe"
    title = "Qwen2-MoE"
    default_fields = {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24}
    fixed_fields = {"mlp_bias": False}
    bounds = {**BOUNDS, "sliding_window": Bounds()}  # 0: none
    aliases = {"qkv_bias": "attention_bias"}

    intermediate_size: int = 5632  # of layers without experts
    num_attention_heads: int = 16
    sliding_window: int | None = 4096
    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """In Qwen2 the later layers have windows, and here every second one of the first, if they are used at all."""
        window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
        raw = super().prepare({**raw, "sliding_window": window or None})
        layers, last = raw.get("num_hidden_layers"), raw.get("max_window_layers", 28)
        if raw.get("use_sliding_window") and raw.get("layer_types") is None and type(layers) is type(last) is int:
            raw["layer_types"] = [SLIDING if n % 2 == 0 and n < last else FULL for n in range(layers)]
        return raw


FAMILY = replace(qwen3_moe.FAMILY, name="Qwen2Moe")


def with_shared(b: Builder, c: Any, x: Value) -> Value:
    """Experts, and one more for all tokens, whose share a gate of its own says."""
    if b.layer not in c.routed_layers:
        return llama.gated_mlp(b, c, x)
    size = c.shared_expert_intermediate_size
    return routed.routed_mlp(b, c, x, shared="shared_expert", shared_size=size, shared_gate="shared_expert_gate")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=with_shared)
