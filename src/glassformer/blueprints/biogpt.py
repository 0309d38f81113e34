"""BioGPT (https://arxiv.org/abs/2210.10341): BART's decoder by itself, with norms before attention and MLP."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.blueprints.bart import EPS, FIRST
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head
from glassformer.blueprints.config import Config as BaseConfig


@dataclass(kw_only=True)
class Config(BaseConfig):
    model_type = "biogpt"
    title = "BioGPT"
    default_fields = {"vocab_size": 42384, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}

    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    activation_dropout: float = 0.0
    classifier_dropout: float | None = None
    max_position_embeddings: int = 1024
    layer_norm_eps: float = 1e-12  # said and never read: norms have the usual one
    scale_embedding: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def head_dropout(self) -> float:
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout


FAMILY = Family(
    name="BioGpt",
    base="biogpt",
    heads=("causal", "sequence", "token"),
    modules={
        "": "Model embed_tokens embed_positions layers layer_norm",
        "layers.*": "DecoderLayer self_attn self_attn_layer_norm activation_fn fc1 fc2 final_layer_norm",
        "self_attn": "Attention k_proj v_proj q_proj out_proj",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), EPS
    heads, size, dropout = c.num_attention_heads, c.head_dim, c.hidden_dropout_prob
    x = b.embed(f"{base}embed_tokens", site=None, scale=c.hidden_size**0.5 if c.scale_embedding else 1.0)
    x = b.position(x, f"{base}embed_positions", c.max_position_embeddings + FIRST, site="embedding", first=FIRST)
    x = b.dropout(x, dropout, f"{base}dropout")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "self_attn_layer_norm", eps, site="attention.input", how="layer")
            q, k, v = (
                b.heads(h, f"self_attn.{name[0]}_proj", heads, size, bias=True, site=f"attention.{name}")
                for name in ("query", "key", "value")
            )
            a = b.attend(q, k, v, "self_attn", dropout=c.attention_probs_dropout_prob)
            a = b.linear(a, "self_attn.out_proj", c.hidden_size, bias=True, site="attention.update")
            x = b.add(x, b.dropout(a, dropout, "dropout"), site="middle")
            h = b.norm(x, "final_layer_norm", eps, site="mlp.input", how="layer")
            h = b.activate(b.linear(h, "fc1", c.intermediate_size, bias=True), c.hidden_act, "mlp.hidden", "activation_fn")
            h = b.dropout(h, c.activation_dropout, "activation_dropout")
            h = b.linear(h, "fc2", c.hidden_size, bias=True, site="mlp.update")
            x = b.add(x, b.dropout(h, dropout, "dropout"), site="residual")
    x = b.norm(x, f"{base}layer_norm", EPS, site="final", how="layer")
    if head == "causal":
        b.scores(x, "output_projection", c.vocab_size, tied=c.tie_word_embeddings)
        return b.build(head)
    return b.build_with_head(x, head)
