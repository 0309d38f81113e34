"""Blenderbot (https://arxiv.org/abs/2004.13637): mBART's blocks, and learned positions that begin with the first row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bart
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "blenderbot"
    title = "Blenderbot"
    default_fields = {"vocab_size": 8008}
    default_label_count = 2
    fixed_fields = {
        "is_encoder_decoder": True, "normalize_before": True, "normalize_embedding": False, "add_final_layer_norm": True,
        "static_position_embeddings": False, "layernorm_variant": "prelayernorm",
    }  # fmt: skip

    hidden_size: int = 2560
    num_hidden_layers: int = 24
    num_encoder_layers: int = 2
    num_attention_heads: int = 32
    encoder_attention_heads: int = 32
    encoder_ffn_dim: int = 10240
    decoder_ffn_dim: int = 10240
    max_position_embeddings: int = 128
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    decoder_start_token_id: int | None = 1


FAMILY = replace(bart.FAMILY, name="Blenderbot", heads=("seq2seq",), shifts_source=False)


def embedded(b: Builder, c: bart.Config, base: str, name: str) -> Value:
    table = "shared" if c.tie_word_embeddings else f"{name}.embed_tokens"
    x = b.embed(f"{base}{table}", site=None, scale=c.scale)
    x = b.position(x, f"{base}{name}.embed_positions", c.max_position_embeddings, site="embedding")
    return b.dropout(x, c.dropout, f"{base}{name}.dropout")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, embedded, bart.prenorm_stack)
