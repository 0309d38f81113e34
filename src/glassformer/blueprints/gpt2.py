"""GPT-2 (https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).

Pre-norm with biases, learned positions, one fused projection for query, key and value, weights stored as columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head
from glassformer.blueprints.config import GPTConfig


@dataclass(kw_only=True)
class Config(GPTConfig):
    model_type = "gpt2"
    title = "GPT-2"
    default_fields = {"vocab_size": 50257}

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 1024
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    classifier_dropout: float | None = None
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    def initial_std(self, name: str, inputs: int) -> float | None:
        """What is added to the residual stream starts smaller in deeper models."""
        adds = name.endswith(".c_proj")
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers) if adds else self.initializer_range

    @property
    def head_dropout(self) -> float:
        return 0.1 if self.classifier_dropout is None else self.classifier_dropout

    def scale(self, layer: int) -> float:
        """What a layer's attention scores are multiplied by."""
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


FAMILY = Family(
    name="GPT2",
    base="transformer",
    heads=("causal", "sequence", "token", "question"),
    modules={
        "": "Model wte wpe rotary_emb drop h ln_f",
        "h.*": "Block ln_1 attn",
        "attn": "Attention c_attn c_proj",
        "attn.attention": "SelfAttention",
        "mlp": "MLP",
    },
    class_suffixes={"ForCausalLM": "LMHeadModel"},
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps, heads, size = c.layer_norm_epsilon, c.num_attention_heads, c.head_dim
    x = b.embed(f"{base}wte", site=None)
    x = b.position(x, f"{base}wpe", c.max_position_embeddings, site="embedding")
    x = b.dropout(x, c.embd_pdrop, f"{base}drop")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            h = b.norm(x, "ln_1", eps, site="attention.input", how="layer")
            fused = b.linear(h, "attn.c_attn", 3 * c.hidden_size, bias=True, columns=True)
            q, k, v = (
                b.fused_heads(fused, "attn", part * heads, heads, size, site=f"attention.{name}")
                for part, name in enumerate(("query", "key", "value"))
            )
            a = b.attend(q, k, v, "attn", scale=c.scale(layer), dropout=c.attn_pdrop, dropout_module="attn.attn_dropout")
            a = b.linear(a, "attn.c_proj", c.hidden_size, bias=True, site="attention.update", columns=True)
            x = b.add(x, b.dropout(a, c.resid_pdrop, "attn.resid_dropout"), site="middle")
            h = b.norm(x, "ln_2", eps, site="mlp.input", how="layer")
            h = b.linear(h, "mlp.c_fc", c.inner, bias=True, columns=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.c_proj", c.hidden_size, bias=True, site="mlp.update", columns=True)
            x = b.add(x, b.dropout(h, c.resid_pdrop, "mlp.dropout"), site="residual")
    return b.build_with_head(b.norm(x, f"{base}ln_f", eps, site="final", how="layer"), head)
