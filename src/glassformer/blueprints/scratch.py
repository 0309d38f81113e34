"""The from-scratch GPT of the course: pre-norm, ReLU, sinusoidal positions, each head with projections of its own.

Its repository is github.com/waylandzhang/Transformer-from-scratch; names and sizes are those of its checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head
from glassformer.blueprints.bounds import BOUNDS, MAX_LAYERS, MAX_SINUSOIDS, Bounds

EPS = 1e-5


@dataclass(kw_only=True)
class Config(shared.Config):
    model_type = "scratch"
    title = "the from-scratch GPT"
    aliases = {
        "d_model": "hidden_size", "num_blocks": "num_hidden_layers", "num_heads": "num_attention_heads",
        "context_length": "max_position_embeddings", "max_token_value": "vocab_size",
    }  # fmt: skip
    bounds = {  # a head has matrices of its own
        **BOUNDS,
        "max_position_embeddings": Bounds(1, MAX_SINUSOIDS),
        "num_attention_heads": Bounds(1, MAX_LAYERS, held_by="tensors"),
    }

    num_attention_heads: int = 4
    max_position_embeddings: int = 16
    dropout: float = 0.1
    output_size: int | None = None  # the number of scores, where the token embedding has more rows

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_heads_divide()

    def initial_std(self, name: str, inputs: int) -> float | None:
        return None  # the course's layers are torch's own

    @property
    def scores(self) -> int:
        return self.output_size or self.vocab_size


FAMILY = Family(
    name="Scratch",
    printed=False,  # the course's own class names
    base="",
    heads=("causal",),
    modules={
        "transformer_blocks.*[ln1]": "TransformerBlock ln1 ln2 mha ffn",
        "mha": "MultiHeadAttention heads projection_layer",
        "mha.heads.*": "Attention Wq Wk Wv",
        "ffn": "FeedForwardNetwork",
        "ffn.ffn": "Sequential",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b = Builder(c)
    size, blocks = c.hidden_size // c.num_attention_heads, "transformer_blocks"
    x = b.embed("token_embedding_lookup_table", site=None)
    x = b.position(x, "", c.max_position_embeddings, site="embedding", how="sinusoid")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, blocks):
            h = b.norm(x, "ln1", EPS, site="attention.input", how="layer")
            q, k, v = (
                b.separate_heads(
                    h, [f"mha.heads.{n}.W{name[0]}" for n in range(c.num_attention_heads)], size, f"attention.{name}"
                )
                for name in ("query", "key", "value")
            )
            a = b.attend(q, k, v, "mha", dropout=c.dropout, dropout_module="mha.heads.0.dropout")
            for n in range(c.num_attention_heads):
                b.unread_mask(f"mha.heads.{n}.mask")
                b.unused(f"mha.heads.{n}.dropout", c.dropout)
            a = b.linear(a, "mha.projection_layer", c.hidden_size, True, site="attention.update")
            x = b.add(x, b.dropout(a, c.dropout, "mha.dropout"), site="middle")
            h = b.norm(x, "ln2", EPS, site="mlp.input", how="layer")
            h = b.linear(h, "ffn.ffn.0", 4 * c.hidden_size, bias=True)
            h = b.activate(h, "relu", "mlp.hidden", "ffn.ffn.1")
            h = b.linear(h, "ffn.ffn.2", c.hidden_size, bias=True, site="mlp.update")
            x = b.add(x, b.dropout(h, c.dropout, "ffn.ffn.3"), site="residual")
    x = b.norm(x, f"{blocks}.{c.num_hidden_layers}", EPS, site="final", how="layer")
    if head == "causal":
        b.scores(x, "model_out_linear_layer", c.scores, bias=True, tied=c.tie_word_embeddings)
    return b.build(head)
