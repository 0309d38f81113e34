"""ERNIE 4.5's mixtures of experts (https://ernie.baidu.com/blog/posts/ernie4.5): chosen by corrected shares, beside shared
ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, Bounds

LAYERS = ("moe_layer_start_index", "moe_num_shared_experts")


@dataclass(kw_only=True)
class Config(llama.Config, routed.Config):
    model_type = "ernie4_5_moe"
    title = "ERNIE 4.5 with experts"
    default_theta = 500_000.0
    interleaved_rope = True
    default_fields = {
        "vocab_size": 103424, "hidden_size": 2560, "num_hidden_layers": 28, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    }  # fmt: skip
    aliases = {"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"}
    fixed_fields = {
        "use_bias": False, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "norm_topk_prob": True,
        "moe_norm_min": 1e-12,
    }  # fmt: skip
    bounds = {
        **BOUNDS, **dict.fromkeys(LAYERS, Bounds()), "moe_layer_end_index": Bounds(-1), "moe_layer_interval": Bounds(1),
    }  # fmt: skip

    intermediate_size: int = 12288  # of layers without experts
    num_attention_heads: int = 20
    num_key_value_heads: int = 4
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    num_experts: int = 64
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 1536
    norm_topk_prob: bool = True
    moe_num_shared_experts: int = 2
    moe_layer_start_index: int = 1  # the first layer that has experts
    moe_layer_end_index: int = -1  # the last one; -1: that of the model
    moe_layer_interval: int = 1  # every n-th between them

    def __post_init__(self) -> None:
        if self.moe_layer_end_index == -1:
            self.moe_layer_end_index = self.num_hidden_layers - 1
        super().__post_init__()

    @property
    def routed_layers(self) -> tuple[int, ...]:
        between = range(self.moe_layer_start_index, min(self.moe_layer_end_index, self.num_hidden_layers - 1) + 1)
        return tuple(layer for layer in between if (layer + 1) % self.moe_layer_interval == 0)


FAMILY = replace(
    llama.FAMILY, name="Ernie4_5_Moe", heads=("causal",), modules={
        **llama.FAMILY.modules, "mlp[experts]": "SparseMoeBlock gate moe_statics experts shared_experts",
        "moe_statics": "Statics", "experts.*": "MLP gate_proj up_proj down_proj", "shared_experts": "MLP",
    },
)  # fmt: skip


def some_experts(b: Builder, c: Any, x: Value) -> Value:
    if b.layer not in c.routed_layers:
        return llama.gated_mlp(b, c, x)
    return routed.routed_mlp(
        b, c, x, shared="shared_experts", shared_size=c.moe_num_shared_experts * c.moe_intermediate_size,
        correction="mlp.moe_statics.e_score_correction_bias", correction_shape=(1, c.num_experts),
    )  # fmt: skip


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=some_experts)
