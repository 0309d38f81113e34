"""EuroBERT (https://arxiv.org/abs/2503.05500): Llama's blocks, whose tokens see what comes after them, too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.ground.errors import ConfigError
from glassformer.ops.rope import Rope

POOLING = {"bos": "first", "mean": "mean", "late": "mean"}  # how a text becomes one vector that is classified


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "eurobert"
    title = "EuroBERT"
    default_head = "masked"
    default_fields = {"vocab_size": 128256, "hidden_size": 768, "num_hidden_layers": 12}

    intermediate_size: int = 3072
    num_attention_heads: int = 12
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    pad_token_id: int | None = 128001
    bos_token_id: int | None = 128000
    eos_token_id: int | list[int] | None = 128001
    mask_token_id: int = 128002
    classifier_pooling: str = "late"
    rope: Rope = field(default_factory=Rope)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classifier_pooling not in POOLING:
            raise ConfigError(
                f"config field 'classifier_pooling' is {self.classifier_pooling!r}; it must be one of {', '.join(POOLING)}."
            )


FAMILY = replace(llama.FAMILY, name="EuroBert", heads=("masked", "sequence", "token"))


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b = Builder(c)
    x = llama.states(b, c, FAMILY.prefix(head), causal=False)
    if head == "masked":
        b.scores(x, "lm_head", c.vocab_size, bias=c.mlp_bias, tied=c.tie_word_embeddings)
    elif head == "token":
        b.scores(x, "classifier", c.label_count, bias=True)
    elif head == "sequence":
        late = c.classifier_pooling == "late"  # after the hidden layer, and not before
        x = x if late else b.pool(x, POOLING[c.classifier_pooling])
        x = b.activate(b.linear(x, "dense", c.hidden_size, bias=True), "gelu", name="activation")
        b.scores(b.pool(x, "mean") if late else x, "classifier", c.label_count, bias=True)
    return b.build(head)
