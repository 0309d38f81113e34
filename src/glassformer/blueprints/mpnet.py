"""MPNet (https://arxiv.org/abs/2004.09297): BERT's blocks with learned positions, and biases by distance as T5 has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bert, roberta
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value

BUCKETS, FURTHEST = 32, 128  # of distances: how many, and from where on they are all alike; no config says otherwise
PADDING = 1  # the row of the position table that padding has, whatever its id


@dataclass(kw_only=True)
class Config(roberta.Config):
    model_type = "mpnet"
    title = "MPNet"
    default_fields = {"vocab_size": 30527, "hidden_size": 768, "num_hidden_layers": 12}
    fixed_fields = {"relative_attention_num_buckets": BUCKETS}

    @property
    def first_position(self) -> int:
        return PADDING + 1

    @property
    def relative_attention_max_distance(self) -> int:
        return FURTHEST


FAMILY = replace(
    roberta.FAMILY,
    name="MPNet",
    base="mpnet",
    modules={
        "embeddings": bert.FAMILY.modules["embeddings"],
        "encoder": "Encoder layer relative_attention_bias",
        "encoder.layer.*": "Layer",
        "attention": "Attention attn LayerNorm dropout",
        "attention.attn": "SelfAttention q k v o",
        "intermediate": "Intermediate",
        "output": "Output dense LayerNorm",
        "pooler": "Pooler",
        "lm_head": "LMHead dense layer_norm decoder",
        "classifier": "ClassificationHead dense",
    },
)


def embeddings(b: Builder, c: Config, base: str) -> Value:
    x = b.embed(f"{base}embeddings.word_embeddings", site=None)
    x = b.position(x, f"{base}embeddings.position_embeddings", c.max_position_embeddings, first=c.first_position)
    x = b.norm(x, f"{base}embeddings.LayerNorm", c.layer_norm_eps, site="embedding", how="layer")
    return b.dropout(x, c.hidden_dropout_prob, f"{base}embeddings.dropout")


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = embeddings(b, c, base)
    bias = b.relative_bias(f"{base}encoder.relative_attention_bias", BUCKETS, c.num_attention_heads)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}encoder.layer"):
            h = b.identity(x, "attention.input", "attention.attn")
            a = bert.attention(b, c, h, module="attention.attn", names=("q", "k", "v"), bias=bias)
            x = bert.after_attention(b, c, x, a, "attention.attn.o", "attention")
    return roberta.with_head(b, c, b.identity(x, "final"), base, head)
