"""mBART (https://arxiv.org/abs/2001.08210): BART's parts with the norms before them and one after each stack; a text's
language is a token of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from glassformer.blueprints import bart
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "mbart"
    title = "mBART (and mBART-50)"
    default_label_count = 2
    fixed_fields = {
        "is_encoder_decoder": True, "normalize_before": True, "normalize_embedding": True, "add_final_layer_norm": True,
        "static_position_embeddings": False,
    }  # fmt: skip
    starts_with_last: ClassVar[bool] = True

    decoder_start_token_id: int | None = None  # the target's language, where every text has the same


FAMILY = replace(bart.FAMILY, name="MBart")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, stack=bart.prenorm_stack)
