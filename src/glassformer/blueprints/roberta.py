"""RoBERTa (https://arxiv.org/abs/1907.11692): BERT's blocks; positions begin after the padding id; heads of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError
from glassformer.ops.op import Weight


@dataclass(kw_only=True)
class Config(bert.Config):
    model_type = "roberta"
    title = "RoBERTa"
    default_fields = {"vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12}

    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context < 1:
            raise ConfigError(
                f"config field 'pad_token_id' is {self.pad_token_id}, which leaves no positions of "
                f"{self.max_position_embeddings}: they begin after it."
            )

    @property
    def first_position(self) -> int:
        return (self.pad_token_id or 0) + 1


FAMILY = replace(
    bert.FAMILY,
    name="Roberta",
    base="roberta",
    modules={
        **bert.FAMILY.modules,
        "lm_head": "LMHead dense layer_norm decoder",
        "classifier": "ClassificationHead dense",
    },
    bias_name="lm_head.bias",
    padding_position=True,
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    return with_head(b, c, bert.states(b, c, bert.embeddings(b, c, base), base), base, head)


def with_head(b: Builder, c: bert.Config, x: Value, base: str, head: Head) -> Blueprint:
    if head == "base":
        bert.pooled(b, c, x, base)
    elif head == "masked":
        h = b.activate(b.linear(x, "lm_head.dense", c.hidden_size, bias=True), "gelu")
        h = b.norm(h, "lm_head.layer_norm", c.layer_norm_eps, how="layer")
        bias = Weight("lm_head.bias" if c.tie_word_embeddings else "lm_head.decoder.bias", (c.vocab_size,))
        b.scores(h, "lm_head.decoder", c.vocab_size, bias=bias, tied=c.tie_word_embeddings)
    elif head == "sequence":
        bert.classification_scores(b, c, x, "classifier", "tanh")
    else:
        return b.build_with_head(x, head)
    return b.build(head)
