"""DistilBERT (https://arxiv.org/abs/1910.01108): half of BERT's blocks, no token types, no pooler."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head

EPS = 1e-12  # of every norm; the config does not say


@dataclass(kw_only=True)
class Config(shared.Config):
    model_type = "distilbert"
    title = "DistilBERT"
    default_fields = {"vocab_size": 30522}
    default_head = "masked"
    aliases = {
        "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size", "activation": "hidden_act",
    }  # fmt: skip

    hidden_size: int = 768
    num_hidden_layers: int = 6
    intermediate_size: int = 3072
    num_attention_heads: int = 12
    max_position_embeddings: int = 512
    hidden_act: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    qa_dropout: float = 0.1
    seq_classif_dropout: float = 0.2
    sinusoidal_pos_embds: bool = False  # only how the stored table was made
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()

    @property
    def head_dropout(self) -> float:
        return self.dropout


FAMILY = Family(
    name="DistilBert",
    base="distilbert",
    heads=("masked", "sequence", "token", "question"),
    modules={
        "embeddings": "Embeddings word_embeddings",
        "transformer": "Transformer",
        "transformer.layer.*": "TransformerBlock",
        "attention": "SelfAttention",
        "ffn": "FFN dropout",
        "masked": "Head activation",
        "sequence": "Head pre_classifier classifier",
        "question": "Head qa_outputs",
    },
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    heads, size = c.num_attention_heads, c.hidden_size // c.num_attention_heads
    x = b.embed(f"{base}embeddings.word_embeddings", site=None)
    x = b.position(x, f"{base}embeddings.position_embeddings", c.max_position_embeddings)
    x = b.norm(x, f"{base}embeddings.LayerNorm", EPS, site="embedding", how="layer")
    x = b.dropout(x, c.dropout, f"{base}embeddings.dropout")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}transformer.layer"):
            h = b.identity(x, "attention.input", "attention")
            q, k, v = (
                b.heads(h, f"attention.{name[0]}_lin", heads, size, bias=True, site=f"attention.{name}")
                for name in ("query", "key", "value")
            )
            rate = c.attention_dropout
            a = b.attend(q, k, v, "attention", causal=False, dropout=rate, dropout_module="attention.dropout")
            a = b.linear(a, "attention.out_lin", c.hidden_size, bias=True, site="attention.update")
            x = b.norm(b.add(x, a), "sa_layer_norm", EPS, site="middle", how="layer")
            h = b.identity(x, "mlp.input", "ffn")
            h = b.linear(h, "ffn.lin1", c.intermediate_size, bias=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "ffn.activation")
            h = b.dropout(b.linear(h, "ffn.lin2", c.hidden_size, bias=True, site="mlp.update"), c.dropout, "ffn.dropout")
            x = b.norm(b.add(x, h), "output_layer_norm", EPS, site="residual", how="layer")
    x = b.identity(x, "final")
    if head == "masked":
        h = b.activate(b.linear(x, "vocab_transform", c.hidden_size, bias=True), c.hidden_act, name="activation")
        h = b.norm(h, "vocab_layer_norm", EPS, how="layer")
        b.scores(h, "vocab_projector", c.vocab_size, bias=True, tied=c.tie_word_embeddings)
    elif head == "sequence":
        h = b.activate(b.linear(b.pool(x), "pre_classifier", c.hidden_size, bias=True), "relu")
        b.scores(h, "classifier", c.label_count, bias=True, dropout=c.seq_classif_dropout)
    elif head == "question":
        b.scores(x, "qa_outputs", 2, bias=True, dropout=c.qa_dropout)
    else:
        return b.build_with_head(x, head)
    return b.build(head)
