"""T5Gemma (https://arxiv.org/abs/2504.06225): an encoder-decoder of Gemma 2's blocks. The two stacks may differ in size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from glassformer.blueprints import gemma2, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.layer_types import object_field
from glassformer.ops.rope import Rope

WHOLE = (  # fields of files that are of both stacks; the others are the decoder's
    "architectures", "dtype", "dropout_rate", "attention_dropout", "classifier_dropout_rate", "tie_word_embeddings",
    "decoder_start_token_id", "id2label", "label2id", "problem_type",
)  # fmt: skip
BOTH = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "use_cache")  # the whole's and the decoder's
IMPLIED = ("model_type", "is_decoder", "cross_attention_hidden_size", "dropout_rate", "attention_dropout")  # of a stack


def stack_fields(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of a stack, with Gemma 2's where a file leaves them out."""
    stated = {key: value for key, value in object_field(raw.get(name), name).items() if key not in IMPLIED}
    rates = {key: raw[key] for key in ("attention_dropout",) if key in raw}
    return {**gemma2.Config.default_fields, **stated, **rates}


@dataclass(kw_only=True)
class SourceConfig(gemma2.Config):
    """The encoder's."""

    model_type = "t5_gemma_module"

    def window(self, layer: int) -> int | None:
        """How many tokens a layer sees on each side, itself included."""
        width = super().window(layer)
        return None if width is None else width + 1


@dataclass(kw_only=True)
class Config(gemma2.Config):
    model_type = "t5gemma"
    title = "T5Gemma"
    default_head = "seq2seq"
    fixed_fields = {"mlp_bias": False, "is_encoder_decoder": True}

    encoder: Any = None  # its own config; by default it is as large as the decoder
    dropout_rate: float = 0.0
    classifier_dropout_rate: float = 0.0
    decoder_start_token_id: int | None = 2

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """The decoder's fields become the config's own."""
        if not isinstance(raw.get("encoder"), Mapping):
            return super().read(raw)
        decoder = stack_fields(raw, "decoder")
        whole = {name: value for name, value in raw.items() if name not in ("encoder", "decoder", "vocab_size")}
        if whole.get("decoder_start_token_id") is None:
            whole["decoder_start_token_id"] = decoder.get("bos_token_id")
        return super().read({**decoder, **whole, "encoder": SourceConfig.read(stack_fields(raw, "encoder"))})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder is None:
            own = {part.name: getattr(self, part.name) for part in fields(SourceConfig) if part.init}
            object.__setattr__(self, "encoder", SourceConfig(**own))
        if not isinstance(self.encoder, gemma2.Config):
            object.__setattr__(self, "encoder", SourceConfig.read(stack_fields({"encoder": self.encoder}, "encoder")))

    @property
    def encoder_layers(self) -> int:
        layers: int = self.encoder.num_hidden_layers
        return layers

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"encoder.rotary_emb": self.encoder.rope, "decoder.rotary_emb": self.rope}

    def rotary_head_size(self, name: str) -> int:
        size: int = (self.encoder if name.startswith("encoder.") else self).head_dim
        return size

    def to_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in super().to_dict().items() if name not in ("encoder", "model_type")}
        decoder = {name: value for name, value in values.items() if name not in WHOLE}
        whole = {name: value for name, value in values.items() if name in (*WHOLE, *BOTH)}
        return {
            "model_type": self.model_type, "encoder": self.encoder.to_dict(),
            "decoder": {"model_type": SourceConfig.model_type, **decoder}, "vocab_size": self.vocab_size,
            "is_encoder_decoder": True, **whole,
        }  # fmt: skip


STACK = "embed_tokens norm layers dropout rotary_emb"
LAYER = (
    "self_attn pre_self_attn_layernorm post_self_attn_layernorm mlp pre_feedforward_layernorm post_feedforward_layernorm "
    "dropout"
)
PROJECTIONS = "q_proj k_proj v_proj o_proj"
FAMILY = Family(
    name="T5Gemma",
    heads=("seq2seq", "sequence", "token"),
    modules={
        "": "Model encoder decoder",
        "encoder": f"Encoder {STACK}",
        "decoder": f"Decoder {STACK}",
        "encoder.layers.*": f"EncoderLayer {LAYER}",
        "decoder.layers.*": f"DecoderLayer {LAYER} cross_attn pre_cross_attn_layernorm post_cross_attn_layernorm",
        "self_attn": f"SelfAttention {PROJECTIONS}",
        "cross_attn": f"CrossAttention {PROJECTIONS}",
        "mlp": "MLP gate_proj up_proj down_proj act_fn dropout",
        "lm_head": "LMHead",
        "score": "ClassificationHead dropout out_proj",
    },
    shares_embedding=False,
    classifies_target=True,
    scaled_vectors=True,
    scaled_source=True,
)


def cross_attention(b: Builder, c: Config, h: Value, encoded: Value) -> Value:
    """What the heads of the source give, joined."""
    groups, size, bias = c.num_key_value_heads, c.head_dim, c.attention_bias
    q = b.heads(h, "cross_attn.q_proj", c.num_attention_heads, size, bias, site="cross.query")
    k = b.heads(encoded, "cross_attn.k_proj", groups, size, bias, site="cross.key")
    v = b.heads(encoded, "cross_attn.v_proj", groups, size, bias, site="cross.value")
    return b.attend(
        q, k, v, "cross_attn", causal=False, site_prefix="cross", scale=c.scale, softcap=c.attn_logit_softcapping,
        dropout=c.attention_dropout,
    )  # fmt: skip


def stack(b: Builder, c: gemma2.Config, rate: float, base: str, name: str, encoded: Value | None = None) -> Value:
    """A stack of Gemma 2's blocks; `rate`: of dropout."""

    def normed(x: Value, module: str, site: str) -> Value:
        return b.norm(x, module, c.rms_norm_eps, site=site, offset=1)

    def update(a: Value, module: str, norm: str, site: str) -> Value:
        a = b.linear(a, module, c.hidden_size, c.output_bias)
        return b.dropout(normed(a, norm, site), rate, "dropout")

    scores: dict[str, Any] = {"scale": c.scale, "softcap": c.attn_logit_softcapping, "causal": encoded is not None}
    x = b.embed(f"{base}{name}.embed_tokens", scale=c.hidden_size**0.5, size=c.hidden_size, rows=c.vocab_size)
    x = b.dropout(x, rate, f"{base}{name}.dropout")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}{name}.layers"):
            a = llama.attention(b, c, normed(x, "pre_self_attn_layernorm", "attention.input"), **scores)
            x = b.add(x, update(a, "self_attn.o_proj", "post_self_attn_layernorm", "attention.update"), site="middle")
            if encoded is not None:
                assert isinstance(c, Config)
                a = cross_attention(b, c, normed(x, "pre_cross_attn_layernorm", "cross.input"), encoded)
                a = update(a, "cross_attn.o_proj", "post_cross_attn_layernorm", "cross.update")
                x = b.add(x, a, site="crossed")
            h = normed(x, "pre_feedforward_layernorm", "mlp.input")
            h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act)
            h = b.linear(b.dropout(h, rate, "mlp.dropout"), "mlp.down_proj", c.hidden_size)
            h = normed(h, "post_feedforward_layernorm", "mlp.update")
            x = b.add(x, b.dropout(h, rate, "dropout"), site="residual")
    return b.dropout(normed(x, f"{base}{name}.norm", "final"), rate, f"{base}{name}.dropout")


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    with b.encoder():
        encoded = stack(b, c.encoder, c.dropout_rate, base, "encoder")
    x = stack(b, c, c.dropout_rate, base, "decoder", encoded)
    if head == "seq2seq":
        b.scores(x, "lm_head.out_proj", c.vocab_size, tied=c.tie_word_embeddings, softcap=c.final_logit_softcapping)
    return build_with_labels(b, x, head, c.classifier_dropout_rate)


def build_with_labels(b: Builder, x: Value, head: Head, rate: float) -> Blueprint:
    """Add the scores of labels, where the head has those, and build; `rate`: of their dropout."""
    if head in ("sequence", "token"):
        x = b.pool(x, "last") if head == "sequence" else x
        b.scores(x, "score.out_proj", b.config.label_count, bias=True, dropout=rate, dropout_module="score.dropout")
    return b.build(head)
