"""mT5 (https://arxiv.org/abs/2010.11934): T5 for a hundred languages, with gated MLPs and unscaled scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from glassformer.blueprints import t5
from glassformer.blueprints.t5 import blueprint as blueprint


@dataclass(kw_only=True)
class Config(t5.Config):
    model_type = "mt5"
    title = "mT5"
    default_fields = {"vocab_size": 250112}
    fixed_fields = {"scale_decoder_outputs": False}
    default_layers: ClassVar[int] = 8

    num_hidden_layers: int = 8
    num_encoder_layers: int = 8
    num_attention_heads: int = 6
    intermediate_size: int = 1024
    feed_forward_proj: str = "gated-gelu"
    scale_decoder_outputs: bool = False

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return super().prepare({**raw, "scale_decoder_outputs": False})


FAMILY = replace(t5.FAMILY, name="MT5")
