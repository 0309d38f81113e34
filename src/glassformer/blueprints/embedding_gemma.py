"""EmbeddingGemma (https://arxiv.org/abs/2509.20354): Gemma 3 whose tokens see what comes after them, too, so that states
make a text's vector. Its files are those of a `gemma3_text` model, with `use_bidirectional_attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gemma2, gemma3_text
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(gemma3_text.Config):
    model_type = "embedding_gemma"
    title = "EmbeddingGemma"
    default_head = "masked"
    fixed_fields = {**gemma3_text.Config.fixed_fields, "use_bidirectional_attention": True}

    def window(self, layer: int) -> int | None:
        """How many tokens a layer sees on each side, itself included: half of what files say."""
        width = super().window(layer)
        return None if width is None else width // 2 + 1

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"model_type": gemma3_text.Config.model_type, "use_bidirectional_attention": True}


FAMILY = replace(
    gemma3_text.FAMILY,
    name="EmbeddingGemma",
    heads=("masked", "sequence"),
    class_suffixes={},
    file_classes={
        "EmbeddingGemmaModel": "Gemma3TextModel",
        "EmbeddingGemmaForMaskedLM": "Gemma3ForCausalLM",
        "EmbeddingGemmaForSequenceClassification": "Gemma3TextForSequenceClassification",
    },
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    return gemma2.blueprint(c, head, prepare_query_key=gemma3_text.normed, causal=False)
