"""OLMoE (https://arxiv.org/abs/2409.02060): Llama's shape, with norms over all of query and key, and 64 small experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, olmo2, routed
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config, routed.Config):
    model_type = "olmoe"
    title = "OLMoE"
    default_fields = {
        "vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 16, "pad_token_id": 1, "eos_token_id": 50279,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False}

    intermediate_size: int = 2048
    num_attention_heads: int = 16
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    clip_qkv: float | None = None  # a limit of the numbers of queries, keys and values, after the former's norms
    num_experts: int = 64
    num_experts_per_tok: int = 8
    router_aux_loss_coef: float = 0.01


FAMILY = replace(
    llama.FAMILY,
    name="Olmoe",
    heads=("causal",),
    modules={**llama.FAMILY.modules, "experts.*": "MLP gate_proj up_proj down_proj"},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=routed.routed_mlp, make_heads=olmo2.normed_heads, clip=c.clip_qkv)
