"""T5Gemma's encoder alone: Gemma 2's blocks, whose tokens see what comes after them, too. Its files are those of a `t5gemma`
model that is no encoder-decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from glassformer.blueprints import t5gemma
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(t5gemma.SourceConfig):
    model_type = "t5gemma_encoder"
    title = "T5Gemma's encoder"
    default_head = "masked"
    fixed_fields = {**t5gemma.SourceConfig.fixed_fields, "is_encoder_decoder": False}

    dropout_rate: float = 0.0
    classifier_dropout_rate: float = 0.0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """The encoder's fields become the config's own; the decoder's are kept, and not read."""
        if not isinstance(raw.get("encoder"), Mapping):
            return super().read(raw)
        decoder = t5gemma.stack_fields(raw, "decoder")
        implied = {name: decoder[name] for name in t5gemma.BOTH if name in decoder}
        whole = {name: value for name, value in raw.items() if name not in ("encoder", "vocab_size")}
        return super().read({**t5gemma.stack_fields(raw, "encoder"), **implied, **whole})

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"encoder.rotary_emb": self.rope}

    def to_dict(self) -> dict[str, Any]:
        values, shared = super().to_dict(), {*t5gemma.WHOLE, *self.extra_fields}
        own = {name: value for name, value in values.items() if name not in shared}
        whole = {name: value for name, value in values.items() if name in shared or name in t5gemma.BOTH}
        return {
            **whole, "model_type": t5gemma.Config.model_type, "is_encoder_decoder": False, "vocab_size": self.vocab_size,
            "encoder": {**own, "model_type": t5gemma.SourceConfig.model_type},
        }  # fmt: skip


FAMILY = Family(
    name="T5GemmaEncoder",
    printed=False,
    heads=("sequence", "token"),
    modules={
        "": "Model encoder",
        "encoder": f"T5GemmaEncoder {t5gemma.STACK}",
        "encoder.layers.*": f"T5GemmaEncoderLayer {t5gemma.LAYER}",
        "self_attn": f"T5GemmaSelfAttention {t5gemma.PROJECTIONS}",
        "mlp": "T5GemmaMLP gate_proj up_proj down_proj act_fn dropout",
        "score": "T5GemmaClassificationHead dropout out_proj",
    },
    file_classes={
        "T5GemmaEncoderForSequenceClassification": "T5GemmaForSequenceClassification",
        "T5GemmaEncoderForTokenClassification": "T5GemmaForTokenClassification",
    },
    scaled_vectors=True,
)


def blueprint(c: Config, head: Head = "base") -> Blueprint:
    """Without a head for hidden tokens, which there is none of."""
    b = Builder(c)
    x = t5gemma.stack(b, c, c.dropout_rate, FAMILY.prefix(head), "encoder")
    return t5gemma.build_with_labels(b, x, head, c.classifier_dropout_rate)
