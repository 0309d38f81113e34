"""LFM2's mixtures of experts: its layers, whose experts are chosen by sigmoids with a correction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import lfm2, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(lfm2.Layers, routed.Config):
    model_type = "lfm2_moe"
    title = "LFM2-MoE"
    default_fields = {"vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 32}

    intermediate_size: int = 7168  # of layers without experts
    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1792
    num_dense_layers: int = 2
    use_expert_bias: bool = True
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True

    @property
    def inner(self) -> int:
        return self.intermediate_size

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_dense_layers, self.num_hidden_layers))


FAMILY = replace(
    lfm2.FAMILY,
    name="Lfm2Moe",
    modules={
        **lfm2.ALL_BUT_MLP,
        "": "Model embed_tokens layers embedding_norm pos_emb",
        "feed_forward": "MLP w1 w3 w2",
        "feed_forward[experts]": "SparseMoeBlock gate experts",
        "experts.*": "MLP w1 w3 w2",
    },
)


def some_experts(b: Builder, c: Config, x: Value) -> Value:
    if b.layer not in c.routed_layers:
        return lfm2.gated_mlp(b, c, x)
    correction = "feed_forward.expert_bias" if c.use_expert_bias else ""
    return routed.routed_mlp(
        b, c, x, "feed_forward", names=lfm2.PROJECTIONS, how="sigmoid", correction=correction, floor=1e-6,
        scale=c.routed_scaling_factor,
    )  # fmt: skip


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return lfm2.blueprint(c, head, some_experts)
