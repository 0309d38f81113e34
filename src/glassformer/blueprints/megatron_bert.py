"""Megatron-BERT (https://arxiv.org/abs/1909.08053): BERT with the norms before attention and MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(bert.Config):
    model_type = "megatron-bert"
    title = "Megatron-BERT"
    default_fields = {"vocab_size": 29056, "hidden_size": 1024, "num_hidden_layers": 24}

    num_attention_heads: int = 16
    intermediate_size: int = 4096


FAMILY = replace(
    bert.FAMILY,
    name="MegatronBert",
    modules={
        **bert.FAMILY.modules,
        "encoder": "Encoder layer ln",
        "encoder.layer.*": "Layer attention ln",
        "attention": "Attention ln",
        "attention.output": "SelfOutput",
        "output": "Output",
    },
)


def embeddings(b: Builder, c: bert.Config, base: str) -> Value:
    """As BERT's, without a norm."""
    x = b.embed(f"{base}embeddings.word_embeddings", site=None)
    x = b.position(x, f"{base}embeddings.position_embeddings", c.max_position_embeddings, first=c.first_position)
    table = f"{base}embeddings.token_type_embeddings"
    x = b.position(x, table, c.type_vocab_size, site="embedding", how="segments")
    return b.dropout(x, c.hidden_dropout_prob, f"{base}embeddings.dropout")


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = bert.prenorm_states(b, c, embeddings(b, c, base), base, ("attention.ln", "ln", "ln"))
    return bert.with_head(b, c, x, base, head)
