"""Nomic BERT (https://arxiv.org/abs/2402.01613): BERT's order of norms around RoPE and a gated MLP, all without biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from glassformer.blueprints import bert
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.bounds import BOUNDS, SIZE_OR_DEFAULT
from glassformer.blueprints.config import with_rope
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief
from glassformer.ops.rope import Rope

PUBLISHED = {  # what its authors' own files call the fields
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
    "attn_pdrop": "attention_probs_dropout_prob", "resid_pdrop": "hidden_dropout_prob", "activation_function": "hidden_act",
}  # fmt: skip
GATED = {"swiglu": "silu", "geglu": "gelu"}  # the activations of their gates


@dataclass(kw_only=True)
class RotaryBertConfig(bert.Config):
    """What BERT with RoPE has beside BERT."""

    default_theta: ClassVar[float] = 1000.0
    bounds = {**BOUNDS, "type_vocab_size": SIZE_OR_DEFAULT}

    rope: Rope = field(default_factory=lambda: Rope(theta=1000.0))

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return with_rope(super().prepare(raw), cls.default_theta)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim % 2:
            raise ConfigError(f"config field 'hidden_size' gives heads of {self.head_dim}; RoPE rotates pairs.")
        self.rope.check_head_size(self.head_dim)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": self.rope}

    @property
    def bias(self) -> bool:
        """Whether attention's projections and the MLP's last one have biases."""
        return False


@dataclass(kw_only=True)
class Config(RotaryBertConfig):
    model_type = "nomic_bert"
    title = "Nomic BERT"
    default_fields = {"vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12}
    fixed_fields = {
        "prenorm": False, "causal": False, "parallel_block": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "use_rms_norm": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
        "num_experts": 0,
    }  # fmt: skip

    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        raw = {PUBLISHED.get(name, name): value for name, value in raw.items()}
        if isinstance(kind := raw.get("hidden_act"), str):
            raw["hidden_act"] = GATED.get(kind, kind)
        return super().read(raw)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        size, width, heads = raw.pop("head_dim", None), raw.get("hidden_size"), raw.get("num_attention_heads", 12)
        if size is not None and isinstance(width, int) and isinstance(heads, int) and heads > 0 and size != width // heads:
            raise ConfigError(
                f"config field 'head_dim' is {brief(size)}; other sizes than {width // heads} are not supported."
            )
        return super().prepare(raw)


FAMILY = Family(
    name="NomicBert",
    base="nomic_bert",
    heads=("masked", "sequence", "token"),
    modules={
        "": "Model embeddings rotary_emb layers",
        "embeddings": "Embeddings word_embeddings",
        "layers.*": (
            "Layer post_attention_layernorm post_attention_dropout post_mlp_dropout mlp self_attn post_mlp_layernorm"
        ),
        "self_attn": "Attention",
        "mlp": "MLP",
        "pooler": "Pooler",
        "cls": "OnlyMLMHead",
        "cls.predictions": "LMPredictionHead",
        "transform": "PredictionHeadTransform dense transform_act_fn",
    },
    bias_name="cls.predictions.bias",
)


def states(b: Builder, c: RotaryBertConfig, base: str, gate_dropout: bool = False) -> Value:
    """From ids to the last block's states; `gate_dropout`: whether the MLP's neurons have a dropout."""
    x = b.embed(f"{base}embeddings.word_embeddings", site=None)
    if c.type_vocab_size:
        x = b.position(x, f"{base}embeddings.token_type_embeddings", c.type_vocab_size, how="segments")
    x = b.norm(x, f"{base}embeddings.LayerNorm", c.layer_norm_eps, site="embedding", how="layer")
    x = b.dropout(x, c.hidden_dropout_prob, f"{base}embeddings.dropout")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            a = attention(b, c, b.identity(x, "attention.input", "self_attn"))
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.bias, site="attention.update")
            x = b.add(x, b.dropout(a, c.hidden_dropout_prob, "post_attention_dropout"))
            x = b.norm(x, "post_attention_layernorm", c.layer_norm_eps, site="middle", how="layer")
            h = b.identity(x, "mlp.input", "mlp")
            h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act)
            h = b.dropout(h, c.hidden_dropout_prob, "mlp.dropout") if gate_dropout else h
            h = b.linear(h, "mlp.down_proj", c.hidden_size, c.bias, site="mlp.update")
            x = b.add(x, b.dropout(h, c.hidden_dropout_prob, "post_mlp_dropout"))
            x = b.norm(x, "post_mlp_layernorm", c.layer_norm_eps, site="residual", how="layer")
    return b.identity(x, "final")


def attention(b: Builder, c: RotaryBertConfig, h: Value) -> Value:
    heads, size = c.num_attention_heads, c.head_dim
    q, k = (
        b.rotate(b.heads(h, f"self_attn.{name}_proj", heads, size, c.bias), "self_attn", c.rope, site=f"attention.{kind}")
        for name, kind in (("q", "query"), ("k", "key"))
    )
    v = b.heads(h, "self_attn.v_proj", heads, size, c.bias, site="attention.value")
    return b.attend(q, k, v, "self_attn", causal=False, dropout=c.attention_probs_dropout_prob)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = states(b, c, base)
    if head == "masked":
        bert.masked_scores(b, c, x, norm="layer_norm")
        return b.build(head)
    return with_label_head(b, c, x, base, head)


def with_label_head(b: Builder, c: RotaryBertConfig, x: Value, base: str, head: Head) -> Blueprint:
    """Of heads for labels, and none; the base alone has no pooler."""
    return b.build_with_head(x, head) if head != "sequence" else bert.with_head(b, c, x, base, head)
