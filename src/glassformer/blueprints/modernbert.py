"""ModernBERT (https://arxiv.org/abs/2412.13663): an encoder with RoPE, gated MLPs and norms before each part, hardly any
biases; most layers see only what is near."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.layer_types import object_field
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief
from glassformer.ops.rope import Rope

KINDS = {"full_attention": "default", "sliding_attention": "local"}  # of layers, and the name of each one's RoPE
POOLING = {"cls": "first", "mean": "mean"}  # how a text becomes a vector that is classified


@dataclass(kw_only=True)
class ModernBertBlocksConfig(shared.Config):
    """What the encoder and the decoder have in common."""

    default_fields = {"vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22}
    aliases = {"norm_eps": "layer_norm_eps", "hidden_activation": "hidden_act"}

    intermediate_size: int = 1152
    num_attention_heads: int = 12
    max_position_embeddings: int = 8192
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    local_attention: int = 128  # how many tokens a local layer sees, half of them on each side
    layer_types: list[str] | None = None
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    mlp_dropout: float = 0.0
    classifier_dropout: float = 0.0
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 50283
    bos_token_id: int | None = 50281
    eos_token_id: int | list[int] | None = 50282
    rope: Rope = field(default_factory=lambda: Rope(theta=160_000.0))
    local_rope: Rope = field(default_factory=Rope)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        ropes, scaling = (object_field(raw.pop(name, None), name) for name in ("rope_parameters", "rope_scaling"))
        longest = raw.get("max_position_embeddings", 8192)
        thetas = {
            "full_attention": raw.pop("global_rope_theta", 160_000.0),
            "sliding_attention": raw.pop("local_rope_theta", 10_000.0),
        }
        read = {
            KINDS[kind]: Rope.read(
                {
                    "rope_parameters": {**object_field(ropes.get(kind), kind), **scaling}, "rope_theta": theta,
                    "max_position_embeddings": longest,
                }
            )
            for kind, theta in thetas.items()
        }  # fmt: skip
        period, layers = raw.pop("global_attn_every_n_layers", 3), raw.get("num_hidden_layers")
        if raw.get("layer_types") is None and isinstance(layers, int) and isinstance(period, int) and period > 0:
            raw["layer_types"] = ["sliding_attention" if layer % period else "full_attention" for layer in range(layers)]
        return super().prepare(raw) | {"rope": read["default"], "local_rope": read["local"]}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_activation("classifier_activation")
        self.check_heads_divide()
        if self.head_dim % 2:
            raise ConfigError(f"config field 'hidden_size' gives heads of {self.head_dim}; RoPE rotates pairs.")
        for rope in (self.rope, self.local_rope):
            rope.check_head_size(self.head_dim)
        kinds = self.layer_types or []
        if len(kinds) != self.num_hidden_layers or not set(kinds) <= KINDS.keys():
            raise ConfigError(
                f"config field 'layer_types' must name one of {', '.join(KINDS)} for each of the "
                f"{self.num_hidden_layers} layers, not {brief(kinds)}."
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": self.rope, "rotary_emb_local": self.local_rope}

    @property
    def head_dropout(self) -> float:
        return self.classifier_dropout

    def rope_name(self, layer: int) -> str:
        """The name of a layer's RoPE."""
        return KINDS[(self.layer_types or [])[layer]]

    def window(self, layer: int) -> int | None:
        """How many tokens a layer sees on each side, itself included; None: all."""
        return self.local_attention // 2 + 1 if self.rope_name(layer) == "local" else None

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        del raw["local_rope"]
        return raw | {"rope_parameters": {"sliding_attention": self.local_rope.raw(), "full_attention": self.rope.raw()}}


@dataclass(kw_only=True)
class Config(ModernBertBlocksConfig):
    model_type = "modernbert"
    title = "ModernBERT"
    default_head = "masked"

    classifier_pooling: str = "cls"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classifier_pooling not in POOLING:
            raise ConfigError(
                f"config field 'classifier_pooling' is {self.classifier_pooling!r}; it must be one of {', '.join(POOLING)}."
            )


FAMILY = Family(
    name="ModernBert",
    heads=("masked", "sequence", "token", "question"),
    modules={
        "": "Model embeddings layers final_norm",
        "embeddings": "Embeddings tok_embeddings",
        "layers.*": "EncoderLayer attn_norm attn mlp_norm",
        "attn": "Attention Wo Wqkv",
        "mlp": "MLP Wi act drop",
        "head": "PredictionHead dense act",
    },
)


def fused_projections(b: Builder, c: ModernBertBlocksConfig, h: Value) -> tuple[Value, Value, Value]:
    """Queries, keys and values of one projection."""
    heads, size = c.num_attention_heads, c.head_dim
    qkv = b.linear(h, "attn.Wqkv", 3 * c.hidden_size, c.attention_bias)
    q, k = (b.fused_heads(qkv, "attn.Wqkv", first, heads, size) for first in (0, heads))
    return q, k, b.fused_heads(qkv, "attn.Wqkv", 2 * heads, heads, size, site="attention.value")


def states(
    b: Builder,
    c: ModernBertBlocksConfig,
    base: str,
    projected: Callable[..., tuple[Value, Value, Value]] = fused_projections,
    causal: bool = False,
) -> Value:
    """From ids to the last norm's states; `projected`: a block's queries, keys and values."""

    def norm(x: Value, module: str, site: str) -> Value:
        return b.norm(x, module, c.layer_norm_eps, site=site, how="layer", bias=c.norm_bias)

    x = b.embed(f"{base}embeddings.tok_embeddings", site=None)
    x = b.dropout(norm(x, f"{base}embeddings.norm", "embedding"), c.embedding_dropout, f"{base}embeddings.drop")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            if not layer:  # which reads the norm of the embeddings
                b.unused("attn_norm")
            h = norm(x, "attn_norm", "attention.input") if layer else b.identity(x, "attention.input", "attn")
            rope = c.local_rope if c.rope_name(layer) == "local" else c.rope
            q, k, v = projected(b, c, h)
            q = b.rotate(q, "attn", rope, site="attention.query")
            k = b.rotate(k, "attn", rope, site="attention.key")
            a = b.attend(q, k, v, "attn", window=c.window(layer), causal=causal, dropout=c.attention_dropout)
            a = b.linear(a, "attn.Wo", c.hidden_size, c.attention_bias, site="attention.update")
            if c.attention_dropout:
                a = b.dropout(a, c.attention_dropout, "attn.out_drop")
            else:
                b.unused("attn.out_drop")
            x = b.add(x, a, site="middle")
            h = norm(x, "mlp_norm", "mlp.input")
            h = b.linear(h, "mlp.Wi", 2 * c.intermediate_size, c.mlp_bias)
            h = b.dropout(b.fused_gate(h, "mlp", c.intermediate_size, c.hidden_act, name="act"), c.mlp_dropout, "mlp.drop")
            x = b.add(x, b.linear(h, "mlp.Wo", c.hidden_size, c.mlp_bias, site="mlp.update"), site="residual")
    return norm(x, f"{base}final_norm", "final")


def hidden_layer(b: Builder, c: ModernBertBlocksConfig, x: Value, module: str) -> Value:
    """Of a head, before its last layer."""
    h = b.linear(x, f"{module}.dense", c.hidden_size, c.classifier_bias)
    h = b.activate(h, c.classifier_activation, name=f"{module}.act")
    return b.norm(h, f"{module}.norm", c.layer_norm_eps, how="layer", bias=c.norm_bias)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b = Builder(c)
    x = states(b, c, FAMILY.prefix(head))
    if head == "base":
        return b.build(head)
    h = hidden_layer(b, c, b.pool(x, POOLING[c.classifier_pooling]) if head == "sequence" else x, "head")
    if head == "masked":
        b.scores(h, "decoder", c.vocab_size, bias=c.decoder_bias, tied=c.tie_word_embeddings)
    else:
        labels = 2 if head == "question" else c.label_count
        b.scores(h, "classifier", labels, bias=True, dropout=c.head_dropout, dropout_module="drop")
    return b.build(head)
