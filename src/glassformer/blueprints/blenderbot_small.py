"""Blenderbot Small (https://arxiv.org/abs/2004.13637): BART's blocks and Blenderbot's positions, which the decoder adds
after the norm of its embedding, which is not scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bart, blenderbot
from glassformer.blueprints.bart import EPS
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "blenderbot-small"
    title = "Blenderbot Small"
    default_label_count = 2
    fixed_fields = {
        "is_encoder_decoder": True, "normalize_before": False, "normalize_embedding": True, "add_final_layer_norm": False,
        "static_position_embeddings": False, "layernorm_variant": "xlm",
    }  # fmt: skip

    hidden_size: int = 512
    num_hidden_layers: int = 8
    num_encoder_layers: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    max_position_embeddings: int = 512
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    decoder_start_token_id: int | None = 1


FAMILY = replace(blenderbot.FAMILY, name="BlenderbotSmall")


def embedded(b: Builder, c: Config, base: str, name: str) -> Value:
    table = "shared" if c.tie_word_embeddings else f"{name}.embed_tokens"
    positions, rows = f"{base}{name}.embed_positions", c.max_position_embeddings
    norm, site = f"{base}{name}.layernorm_embedding", "embedding"
    x = b.embed(f"{base}{table}", site=None, scale=c.scale if name == "encoder" else 1.0)
    if name == "encoder":
        x = b.norm(b.position(x, positions, rows), norm, EPS, site=site, how="layer")
    else:
        x = b.position(b.norm(x, norm, EPS, how="layer"), positions, rows, site=site)
    return b.dropout(x, c.dropout, f"{base}{name}.dropout")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, embedded)
