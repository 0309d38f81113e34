"""The first DeBERTa (https://arxiv.org/abs/2006.03654): one projection for queries, keys and values, of which keys have no
bias, and a vector for each distance."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import deberta_v2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(deberta_v2.DisentangledConfig):
    model_type = "deberta"
    title = "DeBERTa"
    default_fields = {"vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12}
    fixed_fields = {**deberta_v2.DisentangledConfig.fixed_fields, "talking_head": False}


FAMILY = replace(
    deberta_v2.FAMILY,
    name="Deberta",
    modules={**deberta_v2.FAMILY.modules, "attention.self": "DisentangledSelfAttention in_proj dropout pos_dropout"},
)
TERMS = {"key": ("pos_proj", False), "query": ("pos_q_proj", True)}  # of the distances: projections, and their biases


def attention(b: Builder, c: Config, x: Value, distances: Value | None) -> Value:
    heads, size = c.num_attention_heads, c.hidden_size // c.num_attention_heads
    whole = b.linear(b.identity(x, "attention.input", "attention.self"), "attention.self.in_proj", 3 * c.hidden_size)
    biases = (("query", "attention.self.q_bias"), ("key", ""), ("value", "attention.self.v_bias"))
    projected = tuple(
        b.fused_heads(whole, "attention.self", part, heads, size, site=f"attention.{name}", step=3, bias=bias)
        for part, (name, bias) in enumerate(biases)
    )
    return deberta_v2.attend_apart(b, c, projected, distances, TERMS)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b = Builder(c)
    return deberta_v2.with_head(b, c, deberta_v2.states(b, c, FAMILY.prefix(head), attention), head)
