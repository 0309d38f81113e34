"""BART (https://arxiv.org/abs/1910.13461): encoder-decoder, post-norm with biases, learned positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import config as shared
from glassformer.blueprints.bert import classification_scores
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.ops.op import Weight

Embedded = Callable[[Builder, Any, str, str], Value]
Stack = Callable[..., Value]
FIRST = 2  # the row of the position table that the first token gets
EPS = 1e-5  # of every norm; the config does not say


@dataclass(kw_only=True)
class Config(shared.Config):
    model_type = "bart"
    title = "BART"
    default_fields = {"vocab_size": 50265}
    default_head = "seq2seq"
    default_label_count = 3
    aliases = {
        "d_model": "hidden_size", "encoder_layers": "num_encoder_layers", "decoder_layers": "num_hidden_layers",
        "decoder_attention_heads": "num_attention_heads", "activation_function": "hidden_act",
        "init_std": "initializer_range",
    }  # fmt: skip
    fixed_fields = {"is_encoder_decoder": True}

    hidden_size: int = 1024
    num_hidden_layers: int = 12
    num_encoder_layers: int = 12
    num_attention_heads: int = 16
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_ffn_dim: int = 4096
    max_position_embeddings: int = 1024
    hidden_act: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    classifier_dropout: float = 0.0
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 2
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = 2

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("force_bos_token_to_be_generated") is True and raw.get("forced_bos_token_id") is None:  # an older name
            raw = {**raw, "forced_bos_token_id": raw.get("bos_token_id", 0)}
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()
        self.check_heads_divide("encoder_attention_heads")

    @property
    def encoder_layers(self) -> int:
        return self.num_encoder_layers

    @property
    def head_dropout(self) -> float:
        return self.classifier_dropout

    @property
    def scale(self) -> float:
        """What the vectors of the table are multiplied by."""
        return self.hidden_size**0.5 if self.scale_embedding else 1.0

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"is_encoder_decoder": True}


LAYER = "self_attn self_attn_layer_norm activation_fn fc1 fc2 final_layer_norm dropout activation_dropout"
STACK = "embed_tokens embed_positions layernorm_embedding layer_norm layers"
FAMILY = Family(
    name="Bart",
    heads=("seq2seq", "sequence", "question"),
    modules={
        "": "Model shared encoder decoder",
        "encoder": f"Encoder {STACK}",
        "decoder": f"Decoder {STACK}",
        "encoder.layers.*": f"EncoderLayer {LAYER}",
        "decoder.layers.*": f"DecoderLayer {LAYER} encoder_attn",
        "self_attn": "Attention",
        "encoder_attn": "Attention",
        "classification_head": "ClassificationHead dense",
    },
    shifts_source=True,
)


def attention(
    b: Builder, c: Config, h: Value, module: str, heads: int, site_prefix: str = "attention", encoded: Value | None = None,
    causal: bool = False,
) -> Value:  # fmt: skip
    """The update that attention makes of its input, with every site but the input's."""
    size = c.hidden_size // heads
    q = b.heads(h, f"{module}.q_proj", heads, size, bias=True, site=f"{site_prefix}.query")
    k = b.heads(encoded or h, f"{module}.k_proj", heads, size, bias=True, site=f"{site_prefix}.key")
    v = b.heads(encoded or h, f"{module}.v_proj", heads, size, bias=True, site=f"{site_prefix}.value")
    a = b.attend(q, k, v, module, causal=causal, site_prefix=site_prefix, dropout=c.attention_dropout)
    a = b.linear(a, f"{module}.out_proj", c.hidden_size, bias=True, site=f"{site_prefix}.update")
    return b.dropout(a, c.dropout, "dropout")


def embedded(b: Builder, c: Config, base: str, name: str, rows: int = 0, first: int = FIRST) -> Value:
    """A stack's tokens as its first block takes them. `rows`: of the table of positions, by default one for each of them;
    `first`: the one that the first token gets."""
    rows = rows or c.max_position_embeddings + first
    table = "shared" if c.tie_word_embeddings else f"{name}.embed_tokens"
    x = b.embed(f"{base}{table}", site=None, scale=c.scale)
    x = b.position(x, f"{base}{name}.embed_positions", rows, first=first)
    x = b.norm(x, f"{base}{name}.layernorm_embedding", EPS, site="embedding", how="layer")
    return b.dropout(x, c.dropout, f"{base}{name}.dropout")


def mlp(b: Builder, c: Config, h: Value, inner: int) -> Value:
    """The update that the MLP makes of its input, with every site but the input's."""
    h = b.activate(b.linear(h, "fc1", inner, bias=True), c.hidden_act, "mlp.hidden", "activation_fn")
    h = b.dropout(h, c.activation_dropout, "activation_dropout")
    return b.dropout(b.linear(h, "fc2", c.hidden_size, bias=True, site="mlp.update"), c.dropout, "dropout")


def stack_sizes(c: Config, decoder: bool) -> tuple[int, int, int]:
    """A stack's heads, the neurons of its MLPs, and its blocks."""
    if decoder:
        return c.num_attention_heads, c.decoder_ffn_dim, c.num_hidden_layers
    return c.encoder_attention_heads, c.encoder_ffn_dim, c.num_encoder_layers


def stack(b: Builder, c: Config, x: Value, base: str, name: str, encoded: Value | None = None) -> Value:
    """From embedded tokens to the last block's states."""
    heads, inner, layers = stack_sizes(c, decoder=encoded is not None)
    for layer in range(layers):
        with b.block(layer, f"{base}{name}.layers"):
            h = b.identity(x, "attention.input", "self_attn")
            a = attention(b, c, h, "self_attn", heads, causal=encoded is not None)
            x = b.norm(b.add(x, a), "self_attn_layer_norm", EPS, site="middle", how="layer")
            if encoded is not None:
                h = b.identity(x, "cross.input", "encoder_attn")
                a = attention(b, c, h, "encoder_attn", heads, "cross", encoded)
                x = b.norm(b.add(x, a), "encoder_attn_layer_norm", EPS, site="crossed", how="layer")
            x = b.add(x, mlp(b, c, b.identity(x, "mlp.input"), inner))
            x = b.norm(x, "final_layer_norm", EPS, site="residual", how="layer")
    return b.identity(x, "final")


def prenorm_stack(b: Builder, c: Config, x: Value, base: str, name: str, encoded: Value | None = None) -> Value:
    """The same blocks with the norms before attention and MLP, and one after the last block."""
    heads, inner, layers = stack_sizes(c, decoder=encoded is not None)
    for layer in range(layers):
        with b.block(layer, f"{base}{name}.layers"):
            h = b.norm(x, "self_attn_layer_norm", EPS, site="attention.input", how="layer")
            x = b.add(x, attention(b, c, h, "self_attn", heads, causal=encoded is not None), site="middle")
            if encoded is not None:
                h = b.norm(x, "encoder_attn_layer_norm", EPS, site="cross.input", how="layer")
                x = b.add(x, attention(b, c, h, "encoder_attn", heads, "cross", encoded), site="crossed")
            h = b.norm(x, "final_layer_norm", EPS, site="mlp.input", how="layer")
            x = b.add(x, mlp(b, c, h, inner), site="residual")
    return b.norm(x, f"{base}{name}.layer_norm", EPS, site="final", how="layer")


def blueprint(
    c: Config, head: Head = "seq2seq", embedded: Embedded = embedded, stack: Stack = stack, biased: bool = True,
    family: Family = FAMILY,
) -> Blueprint:  # fmt: skip
    """`embedded`: a stack's tokens as its first block takes them; `biased`: whether the head that writes has a bias, which
    is stored but was never trained."""
    b, base = Builder(c), family.prefix(head)
    with b.encoder():
        encoded = stack(b, c, embedded(b, c, base, "encoder"), base, "encoder")
    x = stack(b, c, embedded(b, c, base, "decoder"), base, "decoder", encoded)
    if head == "seq2seq":
        bias = Weight("final_logits_bias", (1, c.vocab_size)) if biased else False
        b.scores(x, "lm_head", c.vocab_size, bias=bias, tied=c.tie_word_embeddings)
    elif head == "sequence":
        classification_scores(b, c, x, "classification_head", "tanh", pool="eos")
    else:
        return b.build_with_head(x, head)
    return b.build(head)
