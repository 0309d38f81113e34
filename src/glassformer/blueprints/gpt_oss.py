"""gpt-oss (https://arxiv.org/abs/2508.10925): experts with clamped gates, attention sinks, windows in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, Bounds
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}  # fmt: skip


@dataclass(kw_only=True)
class Config(layer_types.Config, routed.Config):
    model_type = "gpt_oss"
    title = "gpt-oss"
    default_period = 2
    default_theta = 150_000.0
    default_fields = {"vocab_size": 201088, "hidden_size": 2880, "num_hidden_layers": 36}
    aliases = {"num_local_experts": "num_experts"}
    fixed_fields = {
        "mlp_bias": False, "hidden_act": "silu", "norm_topk_prob": True, "swiglu_alpha": 1.702,
    }  # fmt: skip
    bounds = {**BOUNDS, "swiglu_limit": Bounds(0, 1e6)}

    intermediate_size: int = 2880
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 64
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    num_experts: int = 128
    num_experts_per_tok: int = 4
    norm_topk_prob: bool = True
    sliding_window: int | None = 128
    swiglu_limit: float = 7.0
    quantization_config: dict[str, Any] | None = None  # of the file alone: its MXFP4 is read as such

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        packing = raw.get("quantization_config")
        if packing is not None and (not isinstance(packing, Mapping) or packing.get("quant_method") != "mxfp4"):
            raise ConfigError(
                f"config field 'quantization_config' is {brief(packing)}; of gpt_oss, MXFP4 is known. Take the model as it "
                "was published, or as a .gguf file."
            )
        ropes = {} if raw.get("rope_parameters") or raw.get("rope_scaling") else {"rope_parameters": YARN}
        return super().prepare({**raw, **ropes, "quantization_config": None})


FAMILY = replace(
    llama.FAMILY,
    name="GptOss",
    stacked_experts="in turns",
    modules={**llama.FAMILY.modules, "experts.*": "Expert gate_proj up_proj down_proj"},
)


def experts(b: Builder, c: Config, x: Value) -> Value:
    return routed.routed_mlp(b, c, x, router="router", bias=True, activation="quick_gelu", limit=c.swiglu_limit, offset=1.0)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=experts, sinks="self_attn.sinks")
