"""M2M-100 (https://arxiv.org/abs/2010.11125) and NLLB (https://arxiv.org/abs/2207.04672): mBART's blocks, and fairseq's
sinusoidal positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bart
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, MAX_SINUSOIDS, Bounds
from glassformer.ground.errors import ConfigError


@dataclass(kw_only=True)
class Config(bart.Config):
    model_type = "m2m_100"
    title = "M2M-100 (and NLLB)"
    default_fields = {"vocab_size": 128112}
    default_label_count = 2
    fixed_fields = {
        "is_encoder_decoder": True, "normalize_before": True, "normalize_embedding": False, "add_final_layer_norm": True,
        "static_position_embeddings": True,
    }  # fmt: skip
    bounds = {
        **BOUNDS, "max_position_embeddings": Bounds(1, MAX_SINUSOIDS), "hidden_size": Bounds(4, held_by="dimension"),
    }  # fmt: skip

    hidden_act: str = "relu"
    attention_dropout: float = 0.1
    scale_embedding: bool = True
    forced_eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad_token_id is None:
            raise ConfigError("config field 'pad_token_id' is null, but positions begin after it: set it to a number.")


FAMILY = replace(bart.FAMILY, name="M2M100", heads=("seq2seq",), shifts_source=False)


def embedded(b: Builder, c: Config, base: str, name: str) -> Value:
    """A stack's tokens with their positions, the first of which is the one after padding's."""
    table = "shared" if c.tie_word_embeddings else f"{name}.embed_tokens"
    x = b.embed(f"{base}{table}", site=None, scale=c.scale)
    assert c.pad_token_id is not None
    x = b.position(
        x, f"{base}{name}.embed_positions", c.max_position_embeddings, site="embedding", how="sinusoid",
        first=c.pad_token_id + 1, inclusive=True,
    )  # fmt: skip
    return b.dropout(x, c.dropout, f"{base}{name}.dropout")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return bart.blueprint(c, head, embedded, bart.prenorm_stack, biased=False)
