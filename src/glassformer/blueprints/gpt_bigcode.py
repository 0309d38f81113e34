"""GPT-BigCode (https://arxiv.org/abs/2301.03988), and StarCoder: GPT-2's blocks, whose heads share one key and one value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gpt2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.config import GPTConfig


@dataclass(kw_only=True)
class Config(GPTConfig):
    model_type = "gpt_bigcode"
    title = "GPT-BigCode (SantaCoder, StarCoder)"
    default_fields = {"vocab_size": 50257}

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 1024
    hidden_act: str = "gelu_pytorch_tanh"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    scale_attn_weights: bool = True
    multi_query: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Files may say how many keys and values there are, too."""
        groups = raw.pop("num_key_value_heads", None)
        return super().prepare({**({} if groups is None else {"multi_query": groups == 1}), **raw})

    @property
    def num_key_value_heads(self) -> int:
        return 1 if self.multi_query else self.num_attention_heads


FAMILY = replace(
    gpt2.FAMILY,
    name="GPTBigCode",
    heads=("causal", "sequence", "token"),
    class_suffixes={},
    modules={
        **gpt2.FAMILY.modules, "h.*": "Block ln_1 attn ln_2 mlp", "attn": "Attention c_attn c_proj resid_dropout",
        "mlp": "MLP c_fc c_proj act dropout",
    },
)  # fmt: skip


def split_heads(b: Builder, c: Config, fused: Value) -> tuple[Value, Value, Value]:
    """Query, key and value of a projection: all queries first, or query, key and value of each head together."""
    heads, size = c.num_attention_heads, c.head_dim
    parts = ((0, heads), (heads, 1), (heads + 1, 1)) if c.multi_query else ((0, heads), (1, heads), (2, heads))
    query, key, value = (
        b.fused_heads(fused, "attn", first, count, size, f"attention.{name}", step=1 if c.multi_query else 3)
        for (first, count), name in zip(parts, ("query", "key", "value"), strict=True)
    )
    return query, key, value


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps, groups = c.layer_norm_epsilon, c.num_key_value_heads
    x = b.embed(f"{base}wte", site=None)
    x = b.position(x, f"{base}wpe", c.max_position_embeddings, site="embedding")
    x = b.dropout(x, c.embd_pdrop, f"{base}drop")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            h = b.norm(x, "ln_1", eps, site="attention.input", how="layer")
            fused = b.linear(h, "attn.c_attn", c.hidden_size + 2 * groups * c.head_dim, bias=True)
            scale = None if c.scale_attn_weights else 1.0
            a = b.attend(*split_heads(b, c, fused), "attn", scale=scale, dropout=c.attn_pdrop)
            a = b.linear(a, "attn.c_proj", c.hidden_size, bias=True, site="attention.update")
            x = b.add(x, b.dropout(a, c.resid_pdrop, "attn.resid_dropout"), site="middle")
            h = b.norm(x, "ln_2", eps, site="mlp.input", how="layer")
            h = b.activate(b.linear(h, "mlp.c_fc", c.inner, bias=True), c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.c_proj", c.hidden_size, bias=True, site="mlp.update")
            x = b.add(x, b.dropout(h, c.resid_pdrop, "mlp.dropout"), site="residual")
    return b.build_with_head(b.norm(x, f"{base}ln_f", eps, site="final", how="layer"), head)
