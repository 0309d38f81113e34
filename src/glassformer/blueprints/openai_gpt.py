"""GPT (https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf): norms after attention
and MLP, learned positions, weights stored as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gpt2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.config import GPTConfig

APPROXIMATE = {"gelu": "gelu_new"}  # what its files mean by it


@dataclass(kw_only=True)
class Config(GPTConfig):
    model_type = "openai-gpt"
    title = "GPT (the first)"
    default_fields = {"vocab_size": 40478}
    aliases = {**{theirs: ours for theirs, ours in GPTConfig.aliases.items() if ours != "hidden_act"}, "afn": "hidden_act"}
    fixed_fields = {"intermediate_size": None}

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 512
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    tie_word_embeddings: bool = True

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        act = raw.get("hidden_act", "gelu")
        return raw | {"hidden_act": APPROXIMATE.get(act, act) if isinstance(act, str) else act}

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        return raw | {"afn": next((name for name, act in APPROXIMATE.items() if act == raw["afn"]), raw["afn"])}


FAMILY = replace(
    gpt2.FAMILY,
    name="OpenAIGPT",
    heads=("causal", "sequence"),
    modules={
        "": "Model tokens_embed positions_embed drop h",
        "h.*": "Block attn ln_1 mlp ln_2",
        "attn": "Attention c_attn c_proj attn_dropout resid_dropout",
        "mlp": "MLP c_fc c_proj act dropout",
    },
    printed=False,
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps, heads, size = c.layer_norm_epsilon, c.num_attention_heads, c.head_dim
    x = b.embed(f"{base}tokens_embed", site=None)
    x = b.position(x, f"{base}positions_embed", c.max_position_embeddings, site="embedding")
    x = b.dropout(x, c.embd_pdrop, f"{base}drop")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            h = b.identity(x, "attention.input", "attn")
            fused = b.linear(h, "attn.c_attn", 3 * c.hidden_size, bias=True, columns=True)
            q, k, v = (
                b.fused_heads(fused, "attn", part * heads, heads, size, site=f"attention.{name}")
                for part, name in enumerate(("query", "key", "value"))
            )
            a = b.attend(q, k, v, "attn", dropout=c.attn_pdrop, dropout_module="attn.attn_dropout")
            a = b.linear(a, "attn.c_proj", c.hidden_size, bias=True, site="attention.update", columns=True)
            x = b.add(x, b.dropout(a, c.resid_pdrop, "attn.resid_dropout"))
            x = b.norm(x, "ln_1", eps, site="middle", how="layer")
            h = b.linear(b.identity(x, "mlp.input", "mlp"), "mlp.c_fc", c.inner, bias=True, columns=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.c_proj", c.hidden_size, bias=True, site="mlp.update", columns=True)
            x = b.norm(b.add(x, b.dropout(h, c.resid_pdrop, "mlp.dropout")), "ln_2", eps, site="residual", how="layer")
    return b.build_with_head(b.identity(x, "final"), head)
