"""T5 (https://arxiv.org/abs/1910.10683): encoder-decoder, pre-norm without biases, relative positions as learned buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.bounds import BOUNDS, SIZE
from glassformer.ground.errors import ConfigError

UNBOUNDED = 1 << 30  # tokens: relative positions have no end


@dataclass(kw_only=True)
class Config(shared.Config):
    model_type = "t5"
    title = "T5 (and v1.1)"
    default_fields = {"vocab_size": 32128}
    default_head = "seq2seq"
    aliases = {
        "d_model": "hidden_size", "num_layers": "num_encoder_layers", "num_decoder_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads", "d_kv": "head_dim", "d_ff": "intermediate_size",
        "n_positions": "max_position_embeddings",
    }  # fmt: skip
    bounds = {**BOUNDS, "head_dim": SIZE}
    default_layers: ClassVar[int] = 6  # of each stack
    biases_in_every_block: ClassVar[bool] = False  # or in the first one, for all

    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_encoder_layers: int = 6
    num_attention_heads: int = 8
    head_dim: int = 64
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    scale_decoder_outputs: bool = True
    tie_word_embeddings: bool = True
    initializer_factor: float = 1.0
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("num_encoder_layers") is None:
            raw["num_encoder_layers"] = raw.get("num_hidden_layers") or cls.default_layers
        if raw.get("num_hidden_layers") is None:  # the decoder's: by default as many
            raw["num_hidden_layers"] = raw["num_encoder_layers"]
        # an old file says by its tying whether scores are scaled; its table is shared whenever it is stored once
        raw.setdefault("scale_decoder_outputs", raw.get("tie_word_embeddings") is not False)
        return super().prepare({**raw, "tie_word_embeddings": True})

    def initial_std(self, name: str, inputs: int) -> float | None:
        """As T5's authors have it: a projection keeps its input's variance; a query's is smaller by the root of the head
        size, because attention scores are not scaled by it; embeddings are not scaled."""
        ending = name.rpartition(".")[2]
        if ending == "relative_attention_bias":
            return self.initializer_factor * float(self.hidden_size**-0.5)
        if not inputs or ending == "lm_head":
            return self.initializer_factor
        return self.initializer_factor * float(inputs**-0.5) * float(self.head_dim**-0.5 if ending == "q" else 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        count, furthest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if furthest <= count // 2:
            raise ConfigError(
                f"config field 'relative_attention_max_distance' is {furthest}; with {count} buckets it must be above "
                f"{count // 2}."
            )
        self.check_activation("hidden_act")

    @classmethod
    def own_name(cls, name: str) -> str:
        return "feed_forward_proj" if name == "hidden_act" else super().own_name(name)

    @property
    def gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def hidden_act(self) -> str:
        """The activation in `feed_forward_proj`; by an old custom, "gated-gelu" means its tanh approximation."""
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else self.feed_forward_proj.removeprefix("gated-")

    @property
    def encoder_layers(self) -> int:
        return self.num_encoder_layers

    @property
    def context(self) -> int:
        return UNBOUNDED

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"tie_word_embeddings": self.scale_decoder_outputs, "is_encoder_decoder": True}


FAMILY = Family(
    name="T5",
    base="",
    heads=("seq2seq",),
    modules={
        "": "Model shared encoder decoder",
        "encoder": "Stack embed_tokens block final_layer_norm",
        "decoder": "Stack embed_tokens block final_layer_norm",
        "block.*": "Block",
        "encoder.block.*.layer.0": "LayerSelfAttention SelfAttention",
        "encoder.block.*.layer.1": "LayerFF DenseReluDense",
        "decoder.block.*.layer.0": "LayerSelfAttention SelfAttention",
        "decoder.block.*.layer.1": "LayerCrossAttention EncDecAttention",
        "decoder.block.*.layer.2": "LayerFF DenseReluDense",
        "SelfAttention": "Attention q k v o",
        "EncDecAttention": "Attention q k v o",
        "DenseReluDense": "DenseActDense wi wo dropout act",
        "DenseReluDense[wi_0]": "DenseGatedActDense wi_0 wi_1 wo dropout act",
        "layer_norm": "LayerNorm",
        "final_layer_norm": "LayerNorm",
    },
    has_encoder_model=True,
    scales_states=True,
)


def attention(
    b: Builder, c: Config, x: Value, module: str, site_prefix: str, encoded: Value | None = None, **options: Any
) -> Value:
    """A norm, attention to the same stack or to the encoder's states, and its update."""
    h = b.norm(x, f"{module.rpartition('.')[0]}.layer_norm", c.layer_norm_epsilon, site=f"{site_prefix}.input")
    heads, size = c.num_attention_heads, c.head_dim
    q = b.heads(h, f"{module}.q", heads, size, site=f"{site_prefix}.query")
    k = b.heads(encoded or h, f"{module}.k", heads, size, site=f"{site_prefix}.key")
    v = b.heads(encoded or h, f"{module}.v", heads, size, site=f"{site_prefix}.value")
    a = b.attend(q, k, v, module, scale=1.0, site_prefix=site_prefix, dropout=c.dropout_rate, **options)
    a = b.linear(a, f"{module}.o", c.hidden_size, site=f"{site_prefix}.update")
    return b.dropout(a, c.dropout_rate, f"{module.rpartition('.')[0]}.dropout")


def plain_mlp(b: Builder, c: Config, h: Value, module: str) -> Value:
    """The update of an MLP without a gate."""
    h = b.activate(b.linear(h, f"{module}.wi", c.intermediate_size), c.hidden_act, "mlp.hidden", f"{module}.act")
    h = b.dropout(h, c.dropout_rate, f"{module}.dropout")
    return b.linear(h, f"{module}.wo", c.hidden_size, site="mlp.update")


def mlp(b: Builder, c: Config, h: Value, layer: str, decoder: bool) -> Value:
    """The update that the MLP of a block's layer makes of its input."""
    module = f"{layer}.DenseReluDense"
    if not c.gated:
        return plain_mlp(b, c, h, module)
    h = b.gate(h, f"{module}.wi_0", f"{module}.wi_1", c.intermediate_size, c.hidden_act, name="act")
    h = b.dropout(h, c.dropout_rate, f"{module}.dropout")
    return b.linear(h, f"{module}.wo", c.hidden_size, site="mlp.update")


MakeMLP = Callable[[Builder, Any, Value, str, bool], Value]  # of a block's input, the layer's name, and the decoder's or not


def stack(
    b: Builder, c: Config, name: str, layers: int, encoded: Value | None = None, mlp: MakeMLP = mlp
) -> Value:  # fmt: skip
    x = b.dropout(b.embed("shared"), c.dropout_rate, f"{name}.dropout")
    table, sizes = "layer.0.SelfAttention.relative_attention_bias", (c.relative_attention_num_buckets, c.num_attention_heads)
    bias = None if c.biases_in_every_block else b.relative_bias(f"{name}.block.0.{table}", *sizes)
    for layer in range(layers):
        with b.block(layer, f"{name}.block"):
            bias = b.relative_bias(table, *sizes) if c.biases_in_every_block else bias
            a = attention(b, c, x, "layer.0.SelfAttention", "attention", causal=encoded is not None, bias=bias)
            x = b.add(x, a, site="middle")
            if encoded is not None:
                x = b.add(x, attention(b, c, x, "layer.1.EncDecAttention", "cross", encoded, causal=False), site="crossed")
            last = "layer.1" if encoded is None else "layer.2"
            h = b.norm(x, f"{last}.layer_norm", c.layer_norm_epsilon, site="mlp.input")
            h = mlp(b, c, h, last, encoded is not None)
            x = b.add(x, b.dropout(h, c.dropout_rate, f"{last}.dropout"), site="residual")
    x = b.norm(x, f"{name}.final_layer_norm", c.layer_norm_epsilon, site="final")
    return b.dropout(x, c.dropout_rate, f"{name}.dropout")


def blueprint(c: Config, head: Head = "seq2seq", mlp: MakeMLP = mlp) -> Blueprint:
    b = Builder(c)
    with b.encoder():
        encoded = stack(b, c, "encoder", c.num_encoder_layers, mlp=mlp)
    x = stack(b, c, "decoder", c.num_hidden_layers, encoded, mlp)
    if head == "seq2seq":
        scale = c.hidden_size**-0.5 if c.scale_decoder_outputs else 1.0
        b.scores(x, "lm_head", c.vocab_size, tied=True, scale=scale)
    return b.build(head)
