"""ELECTRA (https://arxiv.org/abs/2003.10555): BERT's blocks over narrower embeddings; a small generator replaces tokens, and
the discriminator says which."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head


@dataclass(kw_only=True)
class Config(bert.Config):
    model_type = "electra"
    title = "ELECTRA"
    default_fields = {"vocab_size": 30522}
    pretraining_head = "discriminator"

    hidden_size: int = 256
    num_hidden_layers: int = 12
    intermediate_size: int = 1024
    num_attention_heads: int = 4
    embedding_size: int = 128


FAMILY = Family(
    name="Electra",
    base="electra",
    heads=("masked", "discriminator", "sequence", "token", "question"),
    modules={
        **bert.FAMILY.modules,
        "": "Model embeddings embeddings_project",
        "generator_predictions": "GeneratorPredictions LayerNorm",
        "discriminator_predictions": "DiscriminatorPredictions",
        "classifier": "ClassificationHead dense",
    },
    types_first=True,
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    if c.embedding_size == c.hidden_size:
        x = bert.embeddings(b, c, base)
    else:
        x = bert.embeddings(b, c, base, c.embedding_size, site=None)
        x = b.linear(x, f"{base}embeddings_project", c.hidden_size, bias=True, site="embedding")
    x = bert.states(b, c, x, base)
    if head == "masked":
        h = b.activate(b.linear(x, "generator_predictions.dense", c.embedding_size, bias=True), "gelu")
        h = b.norm(h, "generator_predictions.LayerNorm", c.layer_norm_eps, how="layer")
        b.scores(h, "generator_lm_head", c.vocab_size, bias=True, tied=c.tie_word_embeddings)
    elif head == "discriminator":
        h = b.linear(x, "discriminator_predictions.dense", c.hidden_size, bias=True)
        h = b.activate(h, c.hidden_act, name="discriminator_predictions.activation")
        b.scores(h, "discriminator_predictions.dense_prediction", 1, bias=True)
    elif head == "sequence":
        bert.classification_scores(b, c, x, "classifier", "gelu")
    else:
        return b.build_with_head(x, head)
    return b.build(head)
