"""OPT (https://arxiv.org/abs/2205.01068): pre-norm with biases and learned positions; the 350M model norms afterwards.

Its table of tokens may be narrower than the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints.bart import EPS, FIRST
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.bounds import BOUNDS, SIZE
from glassformer.blueprints.config import Config as BaseConfig


@dataclass(kw_only=True)
class Config(BaseConfig):
    model_type = "opt"
    title = "OPT"
    default_fields = {"vocab_size": 50272, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    aliases = {"ffn_dim": "intermediate_size", "activation_function": "hidden_act", "init_std": "initializer_range"}
    bounds = {**BOUNDS, "word_embed_proj_dim": SIZE}

    hidden_size: int = 768
    num_hidden_layers: int = 12
    intermediate_size: int = 3072
    num_attention_heads: int = 12
    hidden_act: str = "relu"
    do_layer_norm_before: bool = True
    word_embed_proj_dim: int = 0  # of the vectors of the table; 0: as wide as the stream
    dropout: float = 0.1
    attention_dropout: float = 0.0
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True  # whether norms have weights
    tie_word_embeddings: bool = True
    _remove_final_layer_norm: bool = False

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        return {name: value for name, value in raw.items() if name != "word_embed_proj_dim" or value is not None}

    def __post_init__(self) -> None:
        self.word_embed_proj_dim = self.word_embed_proj_dim or self.hidden_size
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def final_norm(self) -> bool:
        return self.do_layer_norm_before and not self._remove_final_layer_norm


FAMILY = Family(
    name="OPT",
    heads=("causal", "sequence", "question"),
    modules={
        "": "Model decoder",
        "decoder": "Decoder embed_tokens embed_positions project_out project_in final_layer_norm layers",
        "decoder.layers.*": "DecoderLayer self_attn activation_fn self_attn_layer_norm fc1 fc2 final_layer_norm",
        "self_attn": "Attention k_proj v_proj q_proj out_proj",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), f"{FAMILY.prefix(head)}decoder."
    heads, size, bias, width = c.num_attention_heads, c.head_dim, c.enable_bias, c.hidden_size

    def norm(x: Value, module: str, site: str | None) -> Value:
        return b.norm(x, module, EPS, site=site, how="layer", weight=c.layer_norm_elementwise_affine)

    x = b.embed(f"{base}embed_tokens", site=None, size=c.word_embed_proj_dim)
    if c.word_embed_proj_dim != width:
        x = b.linear(x, f"{base}project_in", width)
    x = b.position(x, f"{base}embed_positions", c.max_position_embeddings + FIRST, site="embedding", first=FIRST)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            before = c.do_layer_norm_before
            h = (
                norm(x, "self_attn_layer_norm", "attention.input")
                if before
                else b.identity(x, "attention.input", "self_attn")
            )
            q, k, v = (
                b.heads(h, f"self_attn.{name[0]}_proj", heads, size, bias, site=f"attention.{name}")
                for name in ("query", "key", "value")
            )
            a = b.attend(q, k, v, "self_attn", dropout=c.attention_dropout)
            a = b.dropout(b.linear(a, "self_attn.out_proj", width, bias, site="attention.update"), c.dropout, "dropout")
            x = b.add(x, a, site="middle") if before else norm(b.add(x, a), "self_attn_layer_norm", "middle")
            h = norm(x, "final_layer_norm", "mlp.input") if before else b.identity(x, "mlp.input")
            h = b.activate(b.linear(h, "fc1", c.intermediate_size, bias), c.hidden_act, "mlp.hidden", "activation_fn")
            h = b.dropout(b.linear(h, "fc2", width, bias, site="mlp.update"), c.dropout, "dropout")
            x = b.add(x, h, site="residual") if before else norm(b.add(x, h), "final_layer_norm", "residual")
    b.unused(f"{base}dropout", c.dropout)
    narrowed = c.word_embed_proj_dim != width
    if c.final_norm:
        x = norm(x, f"{base}final_layer_norm", None if narrowed else "final")
    if narrowed:
        x = b.linear(x, f"{base}project_out", c.word_embed_proj_dim, site="final")
    elif not c.final_norm:
        x = b.identity(x, "final")
    return b.build_with_head(x, head)
