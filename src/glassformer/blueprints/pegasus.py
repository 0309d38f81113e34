"""PEGASUS (https://arxiv.org/abs/1912.08777): BART's parts with the norms before them, Marian's sinusoidal positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bart, marian
from glassformer.blueprints.bart import EPS
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, MAX_SINUSOIDS, Bounds
from glassformer.blueprints.marian import embedded


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


def stack(b: Builder, c: Config, base: str, name: str, encoded: Value | None = None) -> Value:
    """From tokens to the states after the last norm."""
    heads, inner, layers = bart.stack_sizes(c, decoder=encoded is not None)
    x = embedded(b, c, base, name)
    for layer in range(layers):
        with b.block(layer, f"{base}{name}.layers"):
            h = b.norm(x, "self_attn_layer_norm", EPS, site="attention.input", how="layer")
            x = b.add(x, bart.attention(b, c, h, "self_attn", heads, causal=encoded is not None), site="middle")
            if encoded is not None:
                h = b.norm(x, "encoder_attn_layer_norm", EPS, site="cross.input", how="layer")
                x = b.add(x, bart.attention(b, c, h, "encoder_attn", heads, "cross", encoded), site="crossed")
            h = b.norm(x, "final_layer_norm", EPS, site="mlp.input", how="layer")
            x = b.add(x, bart.mlp(b, c, h, inner), site="residual")
    return b.norm(x, f"{base}{name}.layer_norm", EPS, site="final", how="layer")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    with b.encoder():
        encoded = stack(b, c, base, "encoder")
    x = stack(b, c, base, "decoder", encoded)
    if head == "seq2seq":
        bart.vocabulary_scores(b, c, x)
    return b.build(head)
