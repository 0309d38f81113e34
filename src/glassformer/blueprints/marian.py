"""Marian (https://arxiv.org/abs/1804.00344), as the OPUS translation models have it: BART's blocks, sinusoidal positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import bart
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, MAX_SINUSOIDS, Bounds
from glassformer.ground.errors import ConfigError


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "marian"
    title = "Marian (the OPUS translators)"
    default_fields = {"vocab_size": 58101}
    default_label_count = 2
    fixed_fields = {
        "is_encoder_decoder": True, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True,
    }  # fmt: skip
    bounds = {**BOUNDS, "max_position_embeddings": Bounds(1, MAX_SINUSOIDS)}

    pad_token_id: int | None = 58100
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 0
    decoder_start_token_id: int | None = 58100
    forced_eos_token_id: int | list[int] | None = 0

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        target, source = raw.get("decoder_vocab_size"), raw.get("vocab_size")
        if target not in (None, source):
            raise ConfigError(
                f"config field 'decoder_vocab_size' is {target!r}; another vocabulary than the encoder's is not supported."
            )
        return super().prepare(raw)


FAMILY = replace(
    bart.FAMILY,
    name="Marian",
    heads=("seq2seq",),
    class_suffixes={"ForConditionalGeneration": "MTModel"},
    shifts_source=False,
    scaled_vectors=True,
)


def embedded(b: Builder, c: bart.Config, base: str, name: str) -> Value:
    x = b.embed(f"{base}shared", site=None, scale=c.scale)
    table = f"{base}{name}.embed_positions"
    x = b.position(x, table, c.max_position_embeddings, site="embedding", how="sinusoid", halves=True)
    return b.dropout(x, c.dropout, f"{base}{name}.dropout")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, embedded)
