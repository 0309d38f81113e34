"""BLOOM (https://arxiv.org/abs/2211.05100): pre-norm with biases, a norm of the embedding, and ALiBi for positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.config import Config as BaseConfig
from glassformer.ops.positions import alibi_slopes


@dataclass(kw_only=True)
class Config(BaseConfig):
    model_type = "bloom"
    title = "BLOOM"
    default_fields = {"vocab_size": 250880, "bos_token_id": 1, "eos_token_id": 2}
    aliases = {"n_layer": "num_hidden_layers", "seq_length": "max_position_embeddings"}
    fixed_fields = {"n_inner": None}

    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    layer_norm_epsilon: float = 1e-5
    apply_residual_connection_post_layernorm: bool = False  # whether the stream goes on from the norms
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = True

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Some files have two sizes under other names."""
        former = {"n_embed": "hidden_size", "n_head": "num_attention_heads"}
        return super().prepare({former.get(name, name): value for name, value in raw.items()})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_heads_divide()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


FAMILY = Family(
    name="Bloom",
    base="transformer",
    heads=("causal", "sequence", "token", "question"),
    modules={
        "": "Model word_embeddings word_embeddings_layernorm h ln_f",
        "h.*": "Block input_layernorm self_attention post_attention_layernorm mlp",
        "self_attention": "Attention query_key_value dense attention_dropout",
        "mlp": "MLP dense_h_to_4h gelu_impl dense_4h_to_h",
    },
)


def split_heads(b: Builder, c: Any, fused: Value, module: str) -> tuple[Value, Value, Value]:
    """Query, key and value of each head, which lie together in one projection."""
    query, key, value = (
        b.fused_heads(fused, module, part, c.num_attention_heads, c.head_dim, site=f"attention.{name}", step=3)
        for part, name in enumerate(("query", "key", "value"))
    )
    return query, key, value


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps, width = Builder(c), FAMILY.prefix(head), c.layer_norm_epsilon, c.hidden_size
    slopes = alibi_slopes(c.num_attention_heads)
    x = b.embed(f"{base}word_embeddings", site=None)
    x = b.norm(x, f"{base}word_embeddings_layernorm", eps, site="embedding", how="layer")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input", how="layer")
            fused = b.linear(h, "self_attention.query_key_value", 3 * width, bias=True)
            a = b.attend(
                *split_heads(b, c, fused, "self_attention"), "self_attention", slopes=slopes, dropout=c.attention_dropout,
                dropout_module="self_attention.attention_dropout",
            )  # fmt: skip
            a = b.linear(a, "self_attention.dense", width, bias=True, site="attention.update", summed=True)
            x = h if c.apply_residual_connection_post_layernorm else x
            x = b.add(x, b.dropout(a, c.hidden_dropout), site="middle")
            h = b.norm(x, "post_attention_layernorm", eps, site="mlp.input", how="layer")
            m = b.linear(h, "mlp.dense_h_to_4h", 4 * width, bias=True)
            m = b.activate(m, "gelu_new", "mlp.hidden", "mlp.gelu_impl")
            m = b.linear(m, "mlp.dense_4h_to_h", width, bias=True, site="mlp.update", summed=True)
            x = h if c.apply_residual_connection_post_layernorm else x
            x = b.add(x, b.dropout(m, c.hidden_dropout), site="residual")
    return b.build_with_head(b.norm(x, f"{base}ln_f", eps, site="final", how="layer"), head)
