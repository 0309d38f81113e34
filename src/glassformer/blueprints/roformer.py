"""RoFormer (https://arxiv.org/abs/2104.09864): BERT whose positions turn queries and keys: the first RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.ground.errors import ConfigError
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(bert.Config):
    model_type = "roformer"
    title = "RoFormer"
    default_fields = {"vocab_size": 50000, "hidden_size": 768, "num_hidden_layers": 12}
    fixed_fields = {"rotary_value": False}

    max_position_embeddings: int = 1536
    embedding_size: int = 0  # 0: the hidden size

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        return {name: value for name, value in raw.items() if name != "embedding_size" or value is not None}

    def __post_init__(self) -> None:
        self.embedding_size = self.embedding_size or self.hidden_size
        super().__post_init__()
        if self.head_dim % 2:
            raise ConfigError(f"config field 'hidden_size' gives heads of {self.head_dim}; RoPE rotates pairs.")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": Rope(interleaved=True)}


FAMILY = replace(
    bert.FAMILY,
    name="RoFormer",
    base="roformer",
    modules={
        **bert.FAMILY.modules,
        "": "Model embeddings embeddings_project",
        "classifier": "ClassificationHead dense",
    },
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    projected = c.embedding_size != c.hidden_size
    x = b.embed(f"{base}embeddings.word_embeddings", site=None, size=c.embedding_size)
    x = b.position(x, f"{base}embeddings.token_type_embeddings", c.type_vocab_size, how="segments")
    x = b.norm(x, f"{base}embeddings.LayerNorm", c.layer_norm_eps, site=None if projected else "embedding", how="layer")
    x = b.dropout(x, c.hidden_dropout_prob, f"{base}embeddings.dropout")
    if projected:
        x = b.linear(x, f"{base}embeddings_project", c.hidden_size, bias=True, site="embedding")
    x = bert.states(b, c, x, base, c.ropes["rotary_emb"])
    if head == "masked":
        bert.masked_scores(b, c, x, c.embedding_size)
    elif head == "sequence":
        bert.classification_scores(b, c, x, "classifier", c.hidden_act)
    else:
        return b.build_with_head(x, head)
    return b.build(head)
