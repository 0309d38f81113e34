"""Mixtral (https://arxiv.org/abs/2401.04088): Mistral's shape, whose MLP is the best two of eight experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, mistral, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value

EXPERT = ("w1", "w3", "w2")  # an expert's gate, up and down projections


@dataclass(kw_only=True)
class Config(mistral.Config, routed.Config):
    model_type = "mixtral"
    title = "Mixtral"
    default_theta = 1_000_000.0
    default_fields = {
        "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    aliases = {"num_local_experts": "num_experts"}
    fixed_fields = {**mistral.Config.fixed_fields, "norm_topk_prob": True}

    norm_topk_prob: bool = True
    rms_norm_eps: float = 1e-5


FAMILY = replace(
    llama.FAMILY,
    name="Mixtral",
    modules={
        **llama.FAMILY.modules,
        "layers.*": "DecoderLayer self_attn block_sparse_moe",
        "experts.*": "BlockSparseTop2MLP w1 w2 w3",
    },
)


def experts(b: Builder, c: Config, x: Value) -> Value:
    return routed.routed_mlp(b, c, x, "block_sparse_moe", names=EXPERT)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=experts)
