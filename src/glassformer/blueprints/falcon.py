"""Falcon (https://arxiv.org/abs/2311.16867): attention and MLP side by side, few keys and values, RoPE or ALiBi.

Queries, keys and values are one projection: all queries first, those of a group together with its key and value, or those of
each head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.blueprints.bloom import split_heads
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.config import RotaryConfig
from glassformer.ground.errors import ConfigError
from glassformer.ops.positions import alibi_slopes


@dataclass(kw_only=True)
class Config(RotaryConfig):
    model_type = "falcon"
    title = "Falcon"
    default_fields = {"vocab_size": 65024, "bos_token_id": 11, "eos_token_id": 11}
    aliases = {
        "num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size", "activation": "hidden_act",
    }  # fmt: skip

    hidden_size: int = 4544
    num_hidden_layers: int = 32
    num_attention_heads: int = 71
    num_key_value_heads: int = 0  # 0: as many as attention heads
    intermediate_size: int = 0  # 0: four times the hidden size
    hidden_act: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    num_ln_in_parallel_attn: int | None = None  # how many norms a block has whose attention and MLP stand side by side
    hidden_dropout: float = 0.0
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    tie_word_embeddings: bool = True

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The first files have other names for the sizes."""
        former = {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
        raw = super().prepare({former.get(name, name): value for name, value in raw.items()})
        optional = ("num_key_value_heads", "intermediate_size")
        return {name: value for name, value in raw.items() if name not in optional or value is not None}

    def __post_init__(self) -> None:
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        super().__post_init__()
        self.check_heads_divide()
        if self.num_attention_heads % self.groups:
            raise ConfigError(
                f"config field 'num_kv_heads' is {self.groups}; it must divide the {self.num_attention_heads} attention "
                "heads."
            )
        if self.new_decoder_architecture and not self.parallel_attn:
            raise ConfigError(
                "config field 'parallel_attn' is False; in a falcon model of the new architecture attention and MLP stand "
                "side by side."
            )
        if self.num_ln_in_parallel_attn not in (None, 1, 2 if self.new_decoder_architecture else 1):
            raise ConfigError(
                f"config field 'num_ln_in_parallel_attn' is {self.num_ln_in_parallel_attn}; a block has one norm for both, "
                "or two in the new architecture."
            )
        if not self.alibi:
            self.rope.check_head_size(self.head_dim)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def groups(self) -> int:
        """How many keys and values there are."""
        if self.new_decoder_architecture:
            return self.num_key_value_heads
        return 1 if self.multi_query else self.num_attention_heads

    @property
    def two_norms(self) -> bool:
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1

    @property
    def slopes(self) -> tuple[float, ...] | None:
        """What distances take off scores: scaled as these are, and rounded to bfloat16 before, as they were in training."""
        if not self.alibi:
            return None
        exact = np.array(alibi_slopes(self.num_attention_heads), np.float32).view(np.uint32)
        rounded = ((exact + 0x7FFF + ((exact >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return tuple(float(slope) * self.head_dim**-0.5 for slope in rounded)


FAMILY = Family(
    name="Falcon",
    base="transformer",
    heads=("causal", "sequence", "token", "question"),
    modules={
        "": "Model word_embeddings h ln_f rotary_emb",
        "h.*": "DecoderLayer self_attention mlp ln_attn ln_mlp post_attention_layernorm input_layernorm",
        "self_attention": "Attention query_key_value dense attention_dropout",
        "mlp": "MLP dense_h_to_4h act dense_4h_to_h",
    },
)


def heads_of(b: Builder, c: Config, fused: Value) -> tuple[Value, Value, Value]:
    """Query, key and value of a block's one projection."""
    module, heads, groups, size = "self_attention", c.num_attention_heads, c.groups, c.head_dim
    if not (c.new_decoder_architecture or c.multi_query):
        query, key, value = split_heads(b, c, fused, module)
    else:
        run = heads // groups  # queries that lie together, with their key and value after them
        query = b.fused_heads(fused, module, 0, heads, size, step=run + 2, run=run)
        key = b.fused_heads(fused, module, run, groups, size, step=run + 2)
        value = b.fused_heads(fused, module, run + 1, groups, size, site="attention.value", step=run + 2)
    if c.alibi:
        return b.identity(query, "attention.query"), b.identity(key, "attention.key"), value
    query = b.rotate(query, module, c.rope, site="attention.query")
    return query, b.rotate(key, module, c.rope, site="attention.key"), value


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps, width = Builder(c), FAMILY.prefix(head), c.layer_norm_epsilon, c.hidden_size
    x = b.embed(f"{base}word_embeddings")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            normed = b.norm(x, "ln_attn" if c.two_norms else "input_layernorm", eps, how="layer")
            fused = b.linear(
                b.identity(normed, "attention.input"), "self_attention.query_key_value",
                (c.num_attention_heads + 2 * c.groups) * c.head_dim, c.bias,
            )  # fmt: skip
            drops: dict[str, Any] = {"dropout": c.attention_dropout, "dropout_module": "self_attention.attention_dropout"}
            a = b.attend(*heads_of(b, c, fused), "self_attention", slopes=c.slopes, **(drops if c.alibi else {}))
            if not c.alibi:  # then nothing of the pattern is dropped out
                b.unused("self_attention.attention_dropout", c.attention_dropout)
            a = b.linear(a, "self_attention.dense", width, c.bias, site="attention.update")
            middle = b.add(x, b.dropout(a, c.hidden_dropout if c.parallel_attn else c.attention_dropout), site="middle")
            if c.two_norms:
                normed = b.norm(x, "ln_mlp", eps, how="layer")
            elif not c.parallel_attn:
                normed = b.norm(middle, "post_attention_layernorm", eps, how="layer")
            h = b.linear(b.identity(normed, "mlp.input"), "mlp.dense_h_to_4h", c.intermediate_size, c.bias)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.dense_4h_to_h", width, c.bias, site="mlp.update")
            x = b.add(middle, b.dropout(h, c.hidden_dropout), site="residual")
    return b.build_with_head(b.norm(x, f"{base}ln_f", eps, site="final", how="layer"), head)
