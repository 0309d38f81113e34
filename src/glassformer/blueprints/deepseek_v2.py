"""DeepSeek-V2 (https://arxiv.org/abs/2405.04434) and its Lite and Coder models: latent attention and shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import llama, mla, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError

METHODS = ("greedy", "group_limited_greedy")


@dataclass(kw_only=True)
class Config(mla.Config):
    model_type = "deepseek_v2"
    title = "DeepSeek-V2"
    default_fields = {
        "vocab_size": 102400, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    fixed_fields = {**mla.Config.fixed_fields, "scoring_func": "softmax", "norm_topk_prob": False, "moe_layer_freq": 1}

    num_experts: int = 64
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 1407
    norm_topk_prob: bool = False
    n_shared_experts: int = 2
    topk_method: str = "greedy"
    first_k_dense_replace: int = 0

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Where experts are chosen greedily, there are no groups; how many are chosen may be left unsaid."""
        raw = {name: value for name, value in raw.items() if name != "num_experts_per_tok" or value is not None}
        grouped = raw.get("topk_method") == "group_limited_greedy"
        return super().prepare(raw if grouped else {**raw, "n_group": None, "topk_group": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topk_method not in METHODS:
            raise ConfigError(
                f"config field 'topk_method' is {self.topk_method!r}, which is not known. Known: {', '.join(METHODS)}."
            )


FAMILY = replace(llama.FAMILY, name="DeepseekV2", modules=mla.FAMILY_MODULES)


def some_experts(b: Builder, c: Any, x: Value) -> Value:
    if b.layer not in c.routed_layers:
        return llama.gated_mlp(b, c, x)
    return routed.grouped_mlp(b, c, x, how="softmax", correction="", floor=0.0, group_best=1)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=some_experts, attend=mla.attention)
