"""ModernBERT as a decoder (Ettin, https://arxiv.org/abs/2507.11412): its blocks with separate
projections, and tokens that look back only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import modernbert
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(modernbert.ModernBertBlocksConfig):
    model_type = "modernbert-decoder"
    title = "ModernBERT decoder (Ettin)"

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw.pop("sliding_window", None)  # which follows from `local_attention`, whatever a file says
        return super().prepare(raw)

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer looks: half of what files say, which is what its encoder sees on both sides."""
        return self.local_attention // 2 if self.rope_name(layer) == "local" else None


FAMILY = replace(
    modernbert.FAMILY,
    name="ModernBertDecoder",
    heads=("causal", "sequence"),
    modules={
        **modernbert.FAMILY.modules,
        "layers.*": "Layer attn_norm attn mlp_norm",
        "attn": "Attention q_proj k_proj v_proj Wo",
        "lm_head": "PredictionHead dense act",
    },
)


def separate_projections(b: Builder, c: modernbert.ModernBertBlocksConfig, h: Value) -> tuple[Value, Value, Value]:
    heads, size, bias = c.num_attention_heads, c.head_dim, c.attention_bias
    q, k = (b.heads(h, f"attn.{name}_proj", heads, size, bias) for name in ("q", "k"))
    return q, k, b.heads(h, "attn.v_proj", heads, size, bias, site="attention.value")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b = Builder(c)
    x = modernbert.states(b, c, FAMILY.prefix(head), separate_projections, causal=True)
    if head == "causal":
        h = modernbert.hidden_layer(b, c, x, "lm_head")
        b.scores(h, "decoder", c.vocab_size, bias=c.decoder_bias, tied=c.tie_word_embeddings)
    elif head == "sequence":
        h = modernbert.hidden_layer(b, c, b.pool(x, "last"), "head")
        b.scores(
            h, "classifier", c.label_count, bias=c.classifier_bias, dropout=c.head_dropout, dropout_module="drop"
        )  # fmt: skip
    return b.build(head)
