"""Nemotron (https://arxiv.org/abs/2402.16819): Llama's shape with layer norms that add one to their weights, RoPE on a part
of each head, and an MLP of squared ReLUs without a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "nemotron"
    title = "Nemotron and Minitron"
    default_share = 0.5
    default_fields = {
        "vocab_size": 256000, "hidden_size": 6144, "num_hidden_layers": 32, "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    aliases = {"norm_eps": "rms_norm_eps"}

    intermediate_size: int = 24576
    num_attention_heads: int = 48
    hidden_act: str = "relu2"
    max_position_embeddings: int = 4096
    initializer_range: float = 0.0134
    rms_norm_eps: float = 1e-5  # of its layer norms


NORM = "LayerNorm1P"
FAMILY = replace(
    llama.FAMILY,
    name="Nemotron",
    heads=("causal", "sequence", "token"),
    modules={**llama.FAMILY.modules, **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), NORM)},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, mlp=llama.plain_mlp, norm={"how": "layer", "offset": 1})
