"""BERT (https://arxiv.org/abs/1810.04805): every token sees every other; norms come after each sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.ops.op import Weight
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(shared.Config):
    model_type = "bert"
    title = "BERT"
    default_fields = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12}
    default_head = "masked"

    intermediate_size: int = 3072
    num_attention_heads: int = 12
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()

    @property
    def head_dropout(self) -> float:
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @property
    def first_position(self) -> int:
        """The row of the position table that the first token gets."""
        return 0

    @property
    def context(self) -> int:
        return self.max_position_embeddings - self.first_position


FAMILY = Family(
    name="Bert",
    base="bert",
    heads=("masked", "sequence", "token", "question"),
    modules={
        "embeddings": "Embeddings word_embeddings position_embeddings",
        "encoder": "Encoder",
        "encoder.layer.*": "Layer",
        "attention": "Attention",
        "attention.self": "SelfAttention",
        "attention.output": "SelfOutput dense LayerNorm",
        "intermediate": "Intermediate",
        "output": "Output dense LayerNorm",
        "pooler": "Pooler",
        "cls": "OnlyMLMHead",
        "cls.predictions": "LMPredictionHead",
        "transform": "PredictionHeadTransform dense transform_act_fn",
    },
    types_first=True,
    bias_name="cls.predictions.bias",
)


def embeddings(b: Builder, c: Config, base: str, size: int | None = None, site: str | None = "embedding") -> Value:
    """From ids to vectors of a size (by default the hidden one), with positions and token types."""
    x = b.embed(f"{base}embeddings.word_embeddings", site=None, size=size)
    x = b.position(x, f"{base}embeddings.position_embeddings", c.max_position_embeddings, first=c.first_position)
    x = b.position(x, f"{base}embeddings.token_type_embeddings", c.type_vocab_size, how="segments")
    x = b.norm(x, f"{base}embeddings.LayerNorm", c.layer_norm_eps, site=site, how="layer")
    return b.dropout(x, c.hidden_dropout_prob, f"{base}embeddings.dropout")


def states(b: Builder, c: Config, x: Value, base: str, rope: Rope | None = None) -> Value:
    """From embedded tokens to the last block's states."""
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}encoder.layer"):
            x = after_attention(b, c, x, attention(b, c, b.identity(x, "attention.input", "attention.self"), rope))
    return b.identity(x, "final")


def prenorm_states(b: Builder, c: Config, x: Value, base: str, norms: tuple[str, str, str], dropped: bool = True) -> Value:
    """The same of blocks whose norms (before attention, before the MLP, and the last one) come before what they are for;
    `dropped`: whether the MLP's update has a dropout."""

    def norm(x: Value, module: str, site: str) -> Value:
        return b.norm(x, module, c.layer_norm_eps, site=site, how="layer")

    before_attention, before_mlp, last = norms
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}encoder.layer"):
            h = norm(x, before_attention, "attention.input")
            x = b.add(x, attention_update(b, c, attention(b, c, h), summed=True), site="middle")
            h = mlp(b, c, norm(x, before_mlp, "mlp.input"), dropped, summed=True)
            x = b.add(x, h, site="residual")
    return norm(x, f"{base}encoder.{last}", "final")


def attention(
    b: Builder, c: Config, h: Value, rope: Rope | None = None, module: str = "attention.self",
    names: tuple[str, str, str] = ("query", "key", "value"), **options: Any,
) -> Value:  # fmt: skip
    """What a block's heads give, joined; `names`: of the projections."""
    heads, size = c.num_attention_heads, c.hidden_size // c.num_attention_heads

    def projected(name: str, kind: str, rope: Rope | None = None) -> Value:
        site = f"attention.{kind}"
        made = b.heads(h, f"{module}.{name}", heads, size, bias=True, site=site if rope is None else None)
        return made if rope is None else b.rotate(made, module, rope, site=site)

    q, k, v = projected(names[0], "query", rope), projected(names[1], "key", rope), projected(names[2], "value")
    return b.attend(q, k, v, module, causal=False, **pattern_dropout(c, module), **options)


def pattern_dropout(c: Config, module: str = "attention.self") -> dict[str, Any]:
    """Of a block's attention weights, in training."""
    return {"dropout": c.attention_probs_dropout_prob, "dropout_module": f"{module}.dropout"}


def attention_update(
    b: Builder, c: Config, joined: Value, projection: str = "attention.output.dense", around: str = "attention.output",
    summed: bool = False,
) -> Value:  # fmt: skip
    """What a block's heads add to the stream; `around`: the module that has the projection's dropout."""
    a = b.linear(joined, projection, c.hidden_size, bias=True, site="attention.update", summed=summed)
    return b.dropout(a, c.hidden_dropout_prob, f"{around}.dropout")


def mlp(b: Builder, c: Config, h: Value, dropped: bool = True, summed: bool = False) -> Value:
    h = b.linear(h, "intermediate.dense", c.intermediate_size, bias=True)
    h = b.activate(h, c.hidden_act, "mlp.hidden", "intermediate.intermediate_act_fn")
    h = b.linear(h, "output.dense", c.hidden_size, bias=True, site="mlp.update", summed=summed)
    return b.dropout(h, c.hidden_dropout_prob, "output.dropout") if dropped else h


def after_attention(
    b: Builder, c: Config, x: Value, joined: Value, projection: str = "attention.output.dense",
    around: str = "attention.output",
) -> Value:  # fmt: skip
    """A block from its heads' outputs on: what they add to the stream, and the MLP."""
    a = attention_update(b, c, joined, projection, around)
    x = b.norm(b.add(x, a), f"{around}.LayerNorm", c.layer_norm_eps, site="middle", how="layer")
    h = mlp(b, c, b.identity(x, "mlp.input", "intermediate"))
    return b.norm(b.add(x, h), "output.LayerNorm", c.layer_norm_eps, site="residual", how="layer")


def masked_scores(b: Builder, c: Config, x: Value, size: int | None = None, norm: str = "LayerNorm") -> None:
    """The head that guesses hidden tokens; `size`: of its table's vectors."""
    h = b.linear(x, "cls.predictions.transform.dense", size or c.hidden_size, bias=True)
    h = b.activate(h, c.hidden_act, name="cls.predictions.transform.transform_act_fn")
    h = b.norm(h, f"cls.predictions.transform.{norm}", c.layer_norm_eps, how="layer")
    name = "cls.predictions.bias" if c.tie_word_embeddings else "cls.predictions.decoder.bias"
    bias = Weight(name, (c.vocab_size,))
    b.scores(h, "cls.predictions.decoder", c.vocab_size, bias=bias, tied=c.tie_word_embeddings)


def classification_scores(b: Builder, c: Any, x: Value, module: str, how: str, pool: str = "first") -> None:
    """A head that scores a text's labels: a hidden layer with an activation, then the labels."""
    h = b.dropout(b.pool(x, pool), c.head_dropout, f"{module}.dropout")
    h = b.activate(b.linear(h, f"{module}.dense", c.hidden_size, bias=True), how)
    b.scores(
        h, f"{module}.out_proj", c.label_count, bias=True, dropout=c.head_dropout, dropout_module=f"{module}.dropout"
    )  # fmt: skip


def pooled(b: Builder, c: Config, x: Value, base: str) -> Value:
    h = b.linear(b.pool(x), f"{base}pooler.dense", c.hidden_size, bias=True)
    return b.activate(h, "tanh", name=f"{base}pooler.activation")


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    return with_head(b, c, states(b, c, embeddings(b, c, base), base), base, head)


def with_head(b: Builder, c: Config, x: Value, base: str, head: Head) -> Blueprint:
    if head == "base":
        pooled(b, c, x, base)
    elif head == "masked":
        masked_scores(b, c, x)
    elif head == "sequence":
        b.scores(pooled(b, c, x, base), "classifier", c.label_count, bias=True, dropout=c.head_dropout)
    else:
        return b.build_with_head(x, head)
    return b.build(head)
