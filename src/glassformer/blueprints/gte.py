"""GTE (https://arxiv.org/abs/2407.19669), whose files call it "new": Nomic BERT's blocks with biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from glassformer.blueprints import nomic_bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(nomic_bert.RotaryBertConfig):
    model_type = "gte"
    title = "GTE"
    default_theta: ClassVar[float] = 160_000.0
    default_fields = {"vocab_size": 250048, "hidden_size": 768, "num_hidden_layers": 12}
    fixed_fields = {"layer_norm_type": "layer_norm", "logn_attention_scale": False, "logn_attention_clip1": False}

    max_position_embeddings: int = 8192
    type_vocab_size: int = 1
    attention_probs_dropout_prob: float = 0.0
    pad_token_id: int | None = 1
    rope: Rope = field(default_factory=lambda: Rope(theta=160_000.0))

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """Its authors' files say where positions are, and scale RoPE in a way of their own."""
        raw = dict(raw)
        if raw.get("position_embedding_type") == "rope":
            del raw["position_embedding_type"]
        return super().read(with_known_scaling(raw))

    @property
    def bias(self) -> bool:
        return True


def with_known_scaling(raw: dict[str, Any]) -> dict[str, Any]:
    """The authors' NTK scaling (https://kexue.fm/archives/9706) as what it is: a larger base, then slower pairs."""
    scaling = raw.get("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("type") != "ntk" or scaling.get("mixed_b"):
        return raw
    factor, theta = scaling.get("factor"), raw.get("rope_theta", 10_000.0)
    width, heads = raw.get("hidden_size"), raw.get("num_attention_heads", 12)
    if not all(isinstance(number, int | float) and number > 0 for number in (factor, theta, width, heads)):
        return raw
    slower = factor ** (2 / max(width // heads, 1))
    return {**raw, "rope_theta": theta * factor, "rope_scaling": {"rope_type": "linear", "factor": slower}}


FAMILY = replace(
    nomic_bert.FAMILY,
    name="Gte",
    base="gte",
    modules={
        **{module: words for module, words in nomic_bert.FAMILY.modules.items() if "cls" not in module},
        "lm_head": "LMHead dense layer_norm decoder",
    },
    bias_name="",
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = nomic_bert.states(b, c, base, gate_dropout=True)
    if head != "masked":
        return nomic_bert.with_label_head(b, c, x, base, head)
    h = b.activate(b.linear(x, "lm_head.dense", c.hidden_size, bias=True), "gelu")
    h = b.norm(h, "lm_head.layer_norm", c.layer_norm_eps, how="layer")
    b.scores(h, "lm_head.decoder", c.vocab_size, bias=True, tied=c.tie_word_embeddings)
    return b.build(head)
