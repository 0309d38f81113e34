"""What families share whose layers follow the gated delta rule (https://arxiv.org/abs/2412.06464) or attend with a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import drafts, layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError

L2_EPS = 1e-6  # of queries and keys, as vectors of length one


@dataclass(kw_only=True)
class Config(layer_types.TwoKindsConfig):
    default_period = 4
    period_names = ("full_attention_interval",)
    other_kind = "linear_attention"
    default_share = 0.25
    fixed_fields = {"mlp_bias": False}
    draft_names_apart = True

    head_dim: int = 256
    max_position_embeddings: int = 32768
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ConfigError(
                f"config field 'linear_num_key_heads' is {self.linear_num_key_heads}; it must divide the "
                f"{self.linear_num_value_heads} heads of values."
            )

    @property
    def key_columns(self) -> int:
        """Of the keys of a layer with a state."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_columns(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim


def gated_attention(b: Builder, c: Config, h: Value) -> Value:
    """Attention whose joined heads pass a gate, one for each number, made by the projection of the queries."""
    heads, size = c.num_attention_heads, c.head_dim
    both = b.linear(h, "self_attn.q_proj", 2 * heads * size, c.attention_bias)

    def normed(b: Builder, c: Any, query: Value, key: Value) -> tuple[Value, Value]:
        query, key = (
            b.norm(x, f"self_attn.{name}_norm", c.rms_norm_eps, offset=1.0) for x, name in ((query, "q"), (key, "k"))
        )
        return llama.rotated(b, c, query, key)

    def make_heads(b: Builder, c: Any, h: Value, name: str, count: int) -> Value:
        if name == "k":
            return llama.projected_heads(b, c, h, name, count)
        return b.heads_at(both, "self_attn", 0, heads, size, 2 * size)

    a = llama.attention(b, c, h, normed, make_heads)
    gate = b.columns(both, "self_attn", (size, size, 2 * size, heads))
    return b.linear(b.gated(gate, a, "sigmoid", "self_attn"), "self_attn.o_proj", c.hidden_size, c.output_bias,
                    site="attention.update")  # fmt: skip


def recurrent(
    b: Builder, c: Config, mixed: Value, gate: Value, write: Value, step: Value, norm: str = "norm", out: str = "out_proj",
    eps: float | None = None, twice: bool = False,
) -> Value:  # fmt: skip
    """Heads with a state, of a projection that has queries, keys and values side by side; `gate`: of their outputs, `write`
    and `step`: a number for each head; `norm`, `out`: names of modules; `twice`: whether what is written is taken twice."""
    keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    key_size, size, module = c.linear_key_head_dim, c.linear_value_head_dim, "linear_attn"
    mixed = b.causal_conv(mixed, f"{module}.conv1d", c.linear_conv_kernel_dim, c.hidden_act)
    query, key = (
        b.l2_norm(b.heads_at(mixed, module, first, keys, key_size), module, L2_EPS, f"attention.{name}")
        for name, first in (("query", 0), ("key", c.key_columns))
    )
    value = b.heads_at(mixed, module, 2 * c.key_columns, values, size, site="attention.value")
    decay = b.decay(b.time_step(step, f"{module}.dt_bias"), f"{module}.A_log")
    write = b.activate(write, "sigmoid", "attention.write", twice=twice)
    h = b.recur(query, key, value, decay, write, module, delta=True, scale=key_size**-0.5)
    h = b.norm(h, f"{module}.{norm}", c.rms_norm_eps if eps is None else eps, groups=values, shared=True)
    return b.linear(b.gated(gate, h, c.hidden_act, module), f"{module}.{out}", c.hidden_size, site="attention.update")


def projected(b: Builder, c: Config, h: Value) -> Value:
    """Such a layer whose parts have a projection each."""
    module, heads = "linear_attn", c.linear_num_value_heads
    mixed = b.linear(h, f"{module}.in_proj_qkv", 2 * c.key_columns + c.value_columns)
    gate = b.linear(h, f"{module}.in_proj_z", c.value_columns)
    write = b.linear(h, f"{module}.in_proj_b", heads)
    return recurrent(b, c, mixed, gate, write, b.linear(h, f"{module}.in_proj_a", heads))


def fused(b: Builder, c: Config, h: Value) -> Value:
    """One whose parts are two projections, in which each key head has its share of all."""
    module, keys = "linear_attn", c.linear_num_key_heads
    key, value, shared = c.linear_key_head_dim, c.value_columns // keys, c.linear_num_value_heads // keys
    every = 2 * (key + value)
    both = b.linear(h, f"{module}.in_proj_qkvz", keys * every)
    first, second, third, fourth = (
        (size, start, every, keys) for size, start in ((key, 0), (key, key), (value, 2 * key), (value, 2 * key + value))
    )
    mixed, gate = b.columns(both, module, first, second, third), b.columns(both, module, fourth)
    numbers = b.linear(h, f"{module}.in_proj_ba", 2 * c.linear_num_value_heads)
    write, step = (b.columns(numbers, module, (shared, start, 2 * shared, keys)) for start in (0, shared))
    return recurrent(b, c, mixed, gate, write, step)


def blueprint(c: Config, head: Head, recurrence: Any = projected, mlp: llama.MakeMLP = llama.gated_mlp) -> Blueprint:
    """`recurrence`: a layer with a state."""
    b, base, eps = Builder(c), llama.FAMILY.prefix(head), c.rms_norm_eps
    x = drafts.embedded(b, c, base, {"offset": 1.0})
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input", offset=1.0)
            x = b.add(x, (gated_attention if c.is_full(layer) else recurrence)(b, c, h), site="middle")
            h = b.norm(x, "post_attention_layernorm", eps, site="mlp.input", offset=1.0)
            x = b.add(x, mlp(b, c, h), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", offset=1.0)
    return b.build_with_head(x, head, token_head="score")
