"""OLMo (https://arxiv.org/abs/2402.00838): Llama's shape with layer norms that have no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "olmo"
    title = "OLMo"
    default_fields = {
        "vocab_size": 50304, "hidden_size": 4096, "num_hidden_layers": 32, "eos_token_id": 50279, "pad_token_id": 1,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False, "rms_norm_eps": 1e-5}

    rms_norm_eps: float = 1e-5  # of its layer norms
    clip_qkv: float | None = None  # a limit of the numbers of queries, keys and values

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_joined_heads()


FAMILY = replace(
    llama.FAMILY,
    name="Olmo",
    modules={
        **llama.FAMILY.modules,
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), "LayerNorm"),
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, norm={"how": "layer", "weight": False}, clip=c.clip_qkv)
