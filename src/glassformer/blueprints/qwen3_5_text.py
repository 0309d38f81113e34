"""Qwen3.5's text models: three layers of the gated delta rule for each that attends, with a gate and a partial RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gated_delta, layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(gated_delta.Config):
    model_type = "qwen3_5_text"
    title = "Qwen3.5"
    default_fields = {
        "vocab_size": 248320, "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 12288,
        "num_attention_heads": 16, "num_key_value_heads": 4,
    }  # fmt: skip

    @property
    def draft_fields(self) -> Mapping[str, Any]:
        """A head attends."""
        return {"layer_types": [layer_types.FULL]}


LAYERS = {  # how PyTorch shows them
    "layers.*": "DecoderLayer linear_attn self_attn mlp",
    "linear_attn": "GatedDeltaNet conv1d norm out_proj",
}
FAMILY = replace(
    llama.FAMILY,
    name="Qwen3_5",
    heads=("causal", "sequence"),
    modules={**llama.FAMILY.modules, **LAYERS},
    class_suffixes={"Model": "TextModel", "ForSequenceClassification": "TextForSequenceClassification"},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return gated_delta.blueprint(c, head)
