"""What configs of GPT-2, GPT-Neo and GPT-J have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glassformer.blueprints import config as shared


@dataclass(kw_only=True)
class Config(shared.Config):
    aliases: ClassVar[Mapping[str, str]] = {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "activation_function": "hidden_act", "n_inner": "intermediate_size",
    }  # fmt: skip

    num_attention_heads: int
    intermediate_size: int | None = None  # None: four times the hidden size
    hidden_act: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def inner(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size
