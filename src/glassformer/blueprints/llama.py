"""Llama (https://arxiv.org/abs/2302.13971) and its many kin, SmolLM2 among them: pre-norm, RoPE, GQA, gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import drafts
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.config import RotaryConfig
from glassformer.ground.errors import ConfigError
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(RotaryConfig):
    model_type = "llama"
    title = "Llama and models like it (SmolLM2 among them)"
    default_fields = {
        "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip

    intermediate_size: int = 11008
    num_attention_heads: int = 32
    num_key_value_heads: int = 0  # 0: as many as attention heads
    head_dim: int = 0  # 0: hidden size ÷ attention heads
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        for optional in ("num_key_value_heads", "head_dim"):
            if raw.get(optional) is None:
                raw.pop(optional, None)
        return raw

    def __post_init__(self) -> None:
        super().__post_init__()
        heads = self.num_attention_heads
        if not self.num_key_value_heads:
            object.__setattr__(self, "num_key_value_heads", heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // heads)
        if heads % self.num_key_value_heads:
            raise ConfigError(
                f"config field 'num_key_value_heads' is {self.num_key_value_heads}; it must divide the "
                f"{heads} attention heads."
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ConfigError(f"config field 'head_dim' is {self.head_dim}; RoPE rotates pairs, so it must be even.")
        self.rope.check_head_size(self.head_dim)

    def check_joined_heads(self) -> None:
        """Refuse heads of another size, in a family whose heads together are as wide as the stream."""
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ConfigError(
                f"config field 'head_dim' is {self.head_dim}, but all {self.num_attention_heads} heads together must be as "
                f"wide as the stream, which is {self.hidden_size}."
            )

    @property
    def output_bias(self) -> bool:
        """Whether attention's output projection has a bias, as its others may."""
        return self.attention_bias

    @property
    def update_dropout(self) -> float | None:
        """Of what attention and MLP add to the stream, in families that drop some of it out."""
        return None

    def rope_of(self, layer: int) -> Rope:
        """A layer's RoPE."""
        return self.rope


FAMILY = Family(
    name="Llama",
    heads=("causal", "sequence"),
    modules={
        "": "Model embed_tokens layers norm rotary_emb",
        "layers.*": "DecoderLayer self_attn mlp",
        "self_attn": "Attention q_proj k_proj v_proj o_proj",
        "mlp": "MLP",
    },
)

PrepareQueryKey = Callable[[Builder, Any, Value, Value], tuple[Value, Value]]
MakeHeads = Callable[[Builder, Any, Value, str, int], Value]  # "q" or "k", and how many
Attention = Callable[..., Value]  # of a block's normed stream to its heads, joined
MakeMLP = Callable[[Builder, Any, Value], Value]  # of a block: its input to its update
RMS: Mapping[str, Any] = {}
LAYER: Mapping[str, Any] = {"how": "layer"}


def rotated(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    """RoPE on query and key; Qwen3 norms them first."""
    rope = c.rope_of(b.layer)
    return (
        b.rotate(query, "self_attn", rope, site="attention.query"),
        b.rotate(key, "self_attn", rope, site="attention.key"),
    )


def rotated_where_it_has_rope(b: Builder, c: Any, query: Value, key: Value) -> tuple[Value, Value]:
    """RoPE in those of a model's layers that have it."""
    if c.has_rope(b.layer):
        return rotated(b, c, query, key)
    return b.identity(query, "attention.query"), b.identity(key, "attention.key")


def projected_heads(b: Builder, c: Config, h: Value, name: str, heads: int) -> Value:
    return b.heads(h, f"self_attn.{name}_proj", heads, c.head_dim, c.attention_bias)


def attention(
    b: Builder, c: Config, h: Value, prepare_query_key: PrepareQueryKey = rotated, make_heads: MakeHeads = projected_heads,
    clip: float | None = None, **options: Any,
) -> Value:  # fmt: skip
    """What a block's heads give, joined; `make_heads`: of queries and keys; `clip`: a limit of all numbers of
    queries, keys and values; `options`: of the op that attends."""
    groups, size, bias = c.num_key_value_heads, c.head_dim, c.attention_bias
    q, k = (b.clip(make_heads(b, c, h, *made), clip) for made in (("q", c.num_attention_heads), ("k", groups)))
    q, k = prepare_query_key(b, c, q, k)
    v = b.heads(h, "self_attn.v_proj", groups, size, bias, site="attention.value" if clip is None else None)
    v = b.clip(v, clip, "attention.value")
    return b.attend(q, k, v, "self_attn", window=c.window(b.layer), dropout=c.attention_dropout, **options)


def gated_mlp(b: Builder, c: Any, x: Value, site: str | None = "mlp.update", scale: float = 1.0) -> Value:
    h = b.gate(x, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act, c.mlp_bias)
    return b.linear(h, "mlp.down_proj", c.hidden_size, c.mlp_bias, site=site, scale=scale)


def plain_mlp(b: Builder, c: Any, x: Value) -> Value:
    """An MLP without a gate."""
    h = b.linear(x, "mlp.up_proj", c.intermediate_size, c.mlp_bias)
    h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.act_fn")
    return b.linear(h, "mlp.down_proj", c.hidden_size, c.mlp_bias, site="mlp.update")


def blueprint(
    c: Config, head: Head = "causal", prepare_query_key: PrepareQueryKey = rotated, mlp: MakeMLP = gated_mlp,
    norm: Mapping[str, Any] = RMS, attend: Attention | None = None, embedding_scale: float = 1.0,
    update_scale: float = 1.0, score_scale: float = 1.0, **attention_options: Any,
) -> Blueprint:  # fmt: skip
    """`attend`: what a block's heads give; `norm`: options of all norms; the scales: of embedded tokens, of attention's
    updates, and of scores."""
    b = Builder(c)
    x = states(
        b, c, FAMILY.prefix(head), prepare_query_key, mlp, norm, attend or attention, embedding_scale, update_scale,
        **attention_options,
    )  # fmt: skip
    return b.build_with_head(x, head, token_head="score", scale=score_scale)


def states(
    b: Builder, c: Config, base: str, prepare_query_key: PrepareQueryKey = rotated, mlp: MakeMLP = gated_mlp,
    norm: Mapping[str, Any] = RMS, attend: Attention = attention, embedding_scale: float = 1.0, update_scale: float = 1.0,
    **attention_options: Any,
) -> Value:  # fmt: skip
    """From ids to the last norm's states."""
    eps = c.rms_norm_eps
    x = drafts.embedded(b, c, base, norm, scale=embedding_scale)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input", **norm)
            a = attend(b, c, h, prepare_query_key, **attention_options)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.output_bias, site="attention.update", scale=update_scale)
            x = b.add(x, dropped(b, c, a), site="middle")
            h = b.norm(x, "post_attention_layernorm", eps, site="mlp.input", **norm)
            x = b.add(x, dropped(b, c, mlp(b, c, h)), site="residual")
    return b.norm(x, f"{base}norm", eps, site="final", **norm)


def dropped(b: Builder, c: Config, update: Value) -> Value:
    return update if c.update_dropout is None else b.dropout(update, c.update_dropout)
