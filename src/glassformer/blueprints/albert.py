"""ALBERT (https://arxiv.org/abs/1909.11942): BERT whose blocks share their weights, over narrower embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.bounds import BOUNDS, LAYERS
from glassformer.ground.errors import ConfigError
from glassformer.ops.op import Weight


@dataclass(kw_only=True)
class Config(bert.Config):
    model_type = "albert"
    title = "ALBERT"
    default_fields = {"vocab_size": 30000}
    aliases = {"classifier_dropout_prob": "classifier_dropout"}
    fixed_fields = {"inner_group_num": 1}
    bounds = {**BOUNDS, "num_hidden_layers": LAYERS._replace(held_by=None)}  # shared

    hidden_size: int = 4096
    num_hidden_layers: int = 12
    num_hidden_groups: int = 1  # of blocks that share their weights
    intermediate_size: int = 16384
    num_attention_heads: int = 64
    embedding_size: int = 128
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout: float | None = 0.1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ConfigError(
                f"config field 'num_hidden_groups' is {self.num_hidden_groups}, which is more than the "
                f"{self.num_hidden_layers} layers."
            )

    def group(self, layer: int) -> int:
        """Whose weights a layer has."""
        return int(layer / (self.num_hidden_layers / self.num_hidden_groups))


FAMILY = Family(
    name="Albert",
    base="albert",
    heads=("masked", "sequence", "token", "question"),
    modules={
        "embeddings": bert.FAMILY.modules["embeddings"],
        "encoder": "Transformer",
        "albert_layer_groups.*": "LayerGroup",
        "albert_layers.*": "Layer full_layer_layer_norm attention ffn ffn_output activation",
        "attention": "Attention query key value dense attention_dropout output_dropout",
        "predictions": "MLMHead LayerNorm dense decoder",
    },
    types_first=True,
    bias_name="predictions.bias",
)


def states(b: Builder, c: Config, base: str) -> Value:
    """From ids to the last block's states."""
    eps, heads, size = c.layer_norm_eps, c.num_attention_heads, c.hidden_size // c.num_attention_heads
    x = bert.embeddings(b, c, base, c.embedding_size, site=None)
    x = b.linear(x, f"{base}encoder.embedding_hidden_mapping_in", c.hidden_size, bias=True, site="embedding")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}encoder.albert_layer_groups.{c.group(layer)}.albert_layers", stored=0):
            h = b.identity(x, "attention.input", "attention")
            q, k, v = (
                b.heads(h, f"attention.{name}", heads, size, bias=True, site=f"attention.{name}")
                for name in ("query", "key", "value")
            )
            rate = c.attention_probs_dropout_prob
            a = b.attend(q, k, v, "attention", causal=False, dropout=rate, dropout_module="attention.attention_dropout")
            a = b.linear(a, "attention.dense", c.hidden_size, bias=True, site="attention.update")
            a = b.dropout(a, c.hidden_dropout_prob, "attention.output_dropout")
            x = b.norm(b.add(x, a), "attention.LayerNorm", eps, site="middle", how="layer")
            h = b.identity(x, "mlp.input")
            h = b.linear(h, "ffn", c.intermediate_size, bias=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "activation")
            b.unused("dropout", c.hidden_dropout_prob)  # as its authors have it
            h = b.linear(h, "ffn_output", c.hidden_size, bias=True, site="mlp.update")
            x = b.norm(b.add(x, h), "full_layer_layer_norm", eps, site="residual", how="layer")
    return b.identity(x, "final")


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = states(b, c, base)
    if head in ("base", "sequence"):
        x = b.activate(b.linear(b.pool(x), f"{base}pooler", c.hidden_size, bias=True), "tanh")
    if head == "masked":
        h = b.linear(x, "predictions.dense", c.embedding_size, bias=True)
        h = b.activate(h, c.hidden_act, name="predictions.activation")
        h = b.norm(h, "predictions.LayerNorm", c.layer_norm_eps, how="layer")
        bias = Weight("predictions.bias" if c.tie_word_embeddings else "predictions.decoder.bias", (c.vocab_size,))
        b.scores(h, "predictions.decoder", c.vocab_size, bias=bias, tied=c.tie_word_embeddings)
    elif head == "sequence":
        b.scores(x, "classifier", c.label_count, bias=True, dropout=c.head_dropout)
    else:
        return b.build_with_head(x, head)
    return b.build(head)
