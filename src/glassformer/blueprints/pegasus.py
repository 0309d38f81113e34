"""PEGASUS (https://arxiv.org/abs/1912.08777): BART's parts with the norms before them, Marian's sinusoidal positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bart, marian
from glassformer.blueprints.blueprint import Blueprint, Head
from glassformer.blueprints.bounds import BOUNDS, MAX_SINUSOIDS, Bounds


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "pegasus"
    title = "PEGASUS"
    default_fields = {"vocab_size": 50265}
    default_label_count = 2
    fixed_fields = {
        "is_encoder_decoder": True, "tie_word_embeddings": True, "normalize_before": True, "normalize_embedding": False,
        "add_final_layer_norm": True, "static_position_embeddings": True,
    }  # fmt: skip
    bounds = {**BOUNDS, "max_position_embeddings": Bounds(1, MAX_SINUSOIDS)}

    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0
    forced_eos_token_id: int | list[int] | None = 1


FAMILY = replace(marian.FAMILY, name="Pegasus", class_suffixes={})


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, marian.embedded, bart.prenorm_stack)
