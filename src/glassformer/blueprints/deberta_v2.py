"""DeBERTa v2 (https://arxiv.org/abs/2006.03654) and v3 (https://arxiv.org/abs/2111.09543): BERT's blocks whose attention
weighs content and distance apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.bounds import BOUNDS, SIZE_OR_DEFAULT
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief
from glassformer.ops.positions import DistanceBuckets

TERMS = {"c2p": "key", "p2c": "query"}  # content to position: a query meets the distance's key; and position to content


@dataclass(kw_only=True)
class DisentangledConfig(bert.Config):
    """What the first DeBERTa and the later ones have in common."""

    aliases = {"cls_dropout": "classifier_dropout"}
    fixed_fields = {"legacy": True}
    bounds = {**BOUNDS, "type_vocab_size": SIZE_OR_DEFAULT}

    type_vocab_size: int = 0  # 0: no token types
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    position_biased_input: bool = True  # whether positions are added to the token vectors too
    max_relative_positions: int = -1  # -1: as many as positions
    pos_att_type: list[str] | None = None
    pooler_hidden_act: str = "gelu"
    pooler_dropout: float = 0.0

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if isinstance(kinds := raw.get("pos_att_type"), str):
            raw["pos_att_type"] = [kind.strip() for kind in kinds.lower().split("|") if kind.strip()]
        usual = {field.name: field.default for field in fields(cls)} | cls.default_fields
        width, heads = (raw.get(name, usual[name]) for name in ("hidden_size", "num_attention_heads"))
        derived = {"embedding_size": width, "pooler_hidden_size": width}
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            derived["attention_head_size"] = width // heads
        for name, value in derived.items():
            if raw.get(name, value) not in (None, value):
                raise ConfigError(
                    f"config field {name!r} is {brief(raw[name])}; other sizes than {value} are not supported."
                )
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("pooler_hidden_act")
        kinds = self.pos_att_type or []
        if not set(kinds) <= TERMS.keys() or len(set(kinds)) != len(kinds):
            raise ConfigError(f"config field 'pos_att_type' is {brief(kinds)}; it may list {' and '.join(TERMS)}.")

    @property
    def furthest(self) -> int:
        """The largest distance that is told from larger ones."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def distances(self) -> DistanceBuckets:
        """Which vector stands for which distance."""
        return DistanceBuckets(self.furthest, self.furthest, logarithmic=False)

    @property
    def distance_terms(self) -> tuple[str, ...]:
        """Of which attention's scores consist beside the content's own: "key" (content to position), "query"."""
        return tuple(TERMS[kind] for kind in self.pos_att_type or ()) if self.relative_attention else ()

    @property
    def scale(self) -> float:
        """The scale of attention scores, each a sum of one term of content and those of positions."""
        terms = 1 + len(self.pos_att_type or ())
        return float((self.hidden_size // self.num_attention_heads * terms) ** -0.5)


@dataclass(kw_only=True)
class Config(DisentangledConfig):
    model_type = "deberta-v2"
    title = "DeBERTa v2 and v3"
    default_fields = {"vocab_size": 128100}

    hidden_size: int = 1536
    num_hidden_layers: int = 24
    num_attention_heads: int = 24
    intermediate_size: int = 6144
    position_buckets: int = -1  # -1: each distance has a vector of its own
    share_att_key: bool = False  # whether distances are projected as tokens are
    norm_rel_ebd: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm_rel_ebd not in ("none", "layer_norm"):
            raise ConfigError(f"config field 'norm_rel_ebd' is {brief(self.norm_rel_ebd)}; it must be none or layer_norm.")
        distances = self.distances
        if self.relative_attention and distances.logarithmic and not 0 < distances.span // 2 < distances.max_distance - 1:
            raise ConfigError(
                f"config field 'position_buckets' is {self.position_buckets}; for {distances.max_distance} relative "
                f"positions it must be from 2 to {2 * distances.max_distance - 3}."
            )

    @property
    def distances(self) -> DistanceBuckets:
        if self.position_buckets <= 0:
            return super().distances
        return DistanceBuckets(self.position_buckets, self.furthest, logarithmic=True)


FAMILY = Family(
    name="DebertaV2",
    base="deberta",
    heads=("masked", "sequence", "token", "question"),
    modules={
        **bert.FAMILY.modules,
        "encoder": "Encoder layer",
        "attention.self": "DisentangledSelfAttention query_proj key_proj value_proj dropout pos_dropout",
        "pooler": "ContextPooler dense",
        "sequence": "Head pooler classifier",
    },
    bias_name="cls.predictions.bias",
)


def attention(b: Builder, c: Config, x: Value, distances: Value | None) -> Value:
    heads, size = c.num_attention_heads, c.hidden_size // c.num_attention_heads
    h = b.identity(x, "attention.input", "attention.self")
    projected = tuple(
        b.heads(h, f"attention.self.{name}_proj", heads, size, bias=True, site=f"attention.{name}")
        for name in ("query", "key", "value")
    )
    shared = "" if c.share_att_key else "pos_"
    return attend_apart(b, c, projected, distances, {name: (f"{shared}{name}_proj", True) for name in TERMS.values()})


def attend_apart(
    b: Builder,
    c: DisentangledConfig,
    projected: tuple[Value, ...],
    distances: Value | None,
    terms: Mapping[str, tuple[str, bool]],
) -> Value:
    """What heads give, joined; `terms`: the projections of the distances' keys and queries, and whether they have biases."""
    (q, k, v), heads, size = projected, c.num_attention_heads, c.hidden_size // c.num_attention_heads
    if distances is None:
        b.unused("attention.self.pos_dropout", c.hidden_dropout_prob)
        return b.attend(q, k, v, "attention.self", causal=False, scale=c.scale, **bert.pattern_dropout(c))
    distances = b.dropout(distances, c.hidden_dropout_prob, "attention.self.pos_dropout")
    key, query = (
        b.heads(distances, f"attention.self.{terms[name][0]}", heads, size, bias=terms[name][1])
        if name in c.distance_terms
        else None
        for name in ("key", "query")
    )
    return b.attend(
        q, k, v, "attention.self", causal=False, scale=c.scale, distances=c.distances, distance_key=key,
        distance_query=query, **bert.pattern_dropout(c),
    )  # fmt: skip


def states(b: Builder, c: Any, base: str, attention: Callable[..., Value] = attention, distance_norm: bool = False) -> Value:
    """From ids to the last block's states; `distance_norm`: whether the distances' vectors are normed."""
    eps = c.layer_norm_eps
    x = b.embed(f"{base}embeddings.word_embeddings", site=None)
    if c.position_biased_input:
        x = b.position(x, f"{base}embeddings.position_embeddings", c.max_position_embeddings)
    if c.type_vocab_size:
        x = b.position(x, f"{base}embeddings.token_type_embeddings", c.type_vocab_size, how="segments")
    x = b.norm(x, f"{base}embeddings.LayerNorm", eps, site="embedding", how="layer")
    x = b.dropout(x, c.hidden_dropout_prob, f"{base}embeddings.dropout")
    distances = None
    if c.relative_attention:
        distances = b.distance_vectors(f"{base}encoder.rel_embeddings", 2 * c.distances.span)
    if distance_norm and distances is not None:
        distances = b.norm(distances, f"{base}encoder.LayerNorm", eps, how="layer")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}encoder.layer"):
            x = bert.after_attention(b, c, x, attention(b, c, x, distances))
    return b.identity(x, "final")


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b = Builder(c)
    return with_head(b, c, states(b, c, FAMILY.prefix(head), distance_norm=c.norm_rel_ebd == "layer_norm"), head)


def with_head(b: Builder, c: DisentangledConfig, x: Value, head: Head) -> Blueprint:
    if head == "masked":
        bert.masked_scores(b, c, x)
    elif head == "sequence":
        h = b.linear(b.dropout(b.pool(x), c.pooler_dropout, "pooler.dropout"), "pooler.dense", c.hidden_size, bias=True)
        h = b.activate(h, c.pooler_hidden_act, name="pooler.activation")
        b.scores(h, "classifier", c.label_count, bias=True, dropout=c.head_dropout)
    elif head == "token":
        b.scores(x, "classifier", c.label_count, bias=True, dropout=c.hidden_dropout_prob)
    else:
        return b.build_with_head(x, head)
    return b.build(head)
