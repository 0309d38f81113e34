"""MiniMax-M2 (https://github.com/MiniMax-AI/MiniMax-M2): OLMoE's norms, RoPE in a part of a head, experts by sigmoids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, mixtral, olmo2, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value

MODULE = "block_sparse_moe"


@dataclass(kw_only=True)
class Config(llama.Config, routed.Config):
    model_type = "minimax_m2"
    title = "MiniMax-M2"
    default_theta = 5_000_000.0
    default_fields = {
        "vocab_size": 200064, "hidden_size": 3072, "num_hidden_layers": 62, "bos_token_id": 200034, "eos_token_id": 200020,
    }  # fmt: skip
    fixed_fields = {
        "attention_bias": False, "mlp_bias": False, "norm_topk_prob": True, "scoring_func": "sigmoid", "use_qk_norm": True,
        "qk_norm_type": "per_layer", "use_routing_bias": True, "shared_intermediate_size": 0,
    }  # fmt: skip

    intermediate_size: int = 1536  # of an expert
    num_attention_heads: int = 48
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 196608
    num_experts: int = 256
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = True

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Published files say how many numbers of a head are rotated, and newer ones which share that is."""
        rotated, size = raw.get("rotary_dim"), raw.get("head_dim", cls.head_dim)
        if type(rotated) is type(size) is int and size > 0:
            raw = {"partial_rotary_factor": rotated / size, **raw}
        return super().prepare({name: value for name, value in raw.items() if name != "rotary_dim"})


FAMILY = replace(
    llama.FAMILY, name="MiniMaxM2", heads=("causal",), modules={
        **llama.FAMILY.modules, "layers.*": f"DecoderLayer self_attn {MODULE}", MODULE: "SparseMoeBlock gate experts",
        "experts.*": "MLP w1 w2 w3",
    },
)  # fmt: skip


def experts(b: Builder, c: Config, x: Value) -> Value:
    correction = f"{MODULE}.e_score_correction_bias"
    return routed.routed_mlp(b, c, x, MODULE, names=mixtral.EXPERT, how="sigmoid", correction=correction)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=experts, make_heads=olmo2.normed_heads)
