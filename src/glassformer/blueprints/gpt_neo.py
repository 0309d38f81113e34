"""GPT-Neo (https://github.com/EleutherAI/gpt-neo): GPT-2's blocks; every other layer looks back over a window.

Scores of attention are not scaled by the heads' size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gpt2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.bounds import BOUNDS, LENGTH
from glassformer.blueprints.config import GPTConfig
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

GLOBAL, LOCAL = "global", "local"
SCALE = 1.0  # of attention's scores


@dataclass(kw_only=True)
class Config(GPTConfig):
    model_type = "gpt_neo"
    title = "GPT-Neo"
    default_fields = {"vocab_size": 50257}
    aliases = {
        "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "activation_function": "hidden_act",
        "resid_dropout": "resid_pdrop", "embed_dropout": "embd_pdrop", "attention_dropout": "attn_pdrop",
    }  # fmt: skip
    bounds = {**BOUNDS, "window_size": LENGTH}

    hidden_size: int = 2048
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    attention_types: list[Any] | None = None  # [[["global", "local"], 12]]: these two, twelve times; None: these two in turn
    window_size: int = 256
    classifier_dropout: float = 0.1
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.attention_layers) != self.num_hidden_layers or not {GLOBAL, LOCAL}.issuperset(self.attention_layers):
            raise ConfigError(
                f"config field 'attention_types' must name one of {GLOBAL}, {LOCAL} for each of the "
                f"{self.num_hidden_layers} layers, as [[[{GLOBAL!r}, {LOCAL!r}], 12]] does for 24, not "
                f"{brief(self.attention_types)}."
            )

    @property
    def attention_layers(self) -> list[str]:
        """Each layer's kind; those that are no kinds, or too many, are left out."""
        if self.attention_types is None:
            return [LOCAL if layer % 2 else GLOBAL for layer in range(self.num_hidden_layers)]
        layers: list[str] = []
        for item in self.attention_types:
            match item:
                case [[*kinds], int(count)] if len(kinds) * count <= self.num_hidden_layers:
                    layers += [kind for kind in kinds if isinstance(kind, str)] * count
        return layers

    def to_dict(self) -> dict[str, Any]:
        """With every layer's kind: other readers take a missing list for that of 24 layers."""
        return super().to_dict() | {"attention_types": self.attention_types or [[self.attention_layers, 1]]}

    @property
    def head_dropout(self) -> float:
        return self.classifier_dropout

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer looks; None: to the beginning."""
        return self.window_size if self.attention_layers[layer] == LOCAL else None


FAMILY = replace(gpt2.FAMILY, name="GPTNeo", class_suffixes={})


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps, heads, size = c.layer_norm_epsilon, c.num_attention_heads, c.head_dim
    x = b.embed(f"{base}wte", site=None)
    x = b.position(x, f"{base}wpe", c.max_position_embeddings, site="embedding")
    x = b.dropout(x, c.embd_pdrop, f"{base}drop")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            h = b.norm(x, "ln_1", eps, site="attention.input", how="layer")
            q, k, v = (
                b.heads(h, f"attn.attention.{name[0]}_proj", heads, size, site=f"attention.{name}")
                for name in ("query", "key", "value")
            )
            a = b.attend(
                q, k, v, "attn.attention", c.window(layer), scale=SCALE, dropout=c.attn_pdrop,
                dropout_module="attn.attention.attn_dropout",
            )  # fmt: skip
            a = b.linear(a, "attn.attention.out_proj", c.hidden_size, bias=True, site="attention.update")
            x = b.add(x, b.dropout(a, c.resid_pdrop, "attn.attention.resid_dropout"), site="middle")
            h = b.norm(x, "ln_2", eps, site="mlp.input", how="layer")
            h = b.activate(b.linear(h, "mlp.c_fc", c.inner, bias=True), c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.c_proj", c.hidden_size, bias=True, site="mlp.update")
            x = b.add(x, b.dropout(h, c.resid_pdrop, "mlp.dropout"), site="residual")
    return b.build_with_head(b.norm(x, f"{base}ln_f", eps, site="final", how="layer"), head)
