"""Two RoPEs: one of the layers that look back over a window, one of those that look to the beginning. Mixins."""

from __future__ import annotations

from typing import Any

import torch

from glassformer.families import llama
from glassformer.layers import RotaryEmbedding, RotaryPositions, RotaryTables


class TwoRopesAttention(llama.LlamaAttention):
    def __init__(self, c: Any, layer: int) -> None:
        super().__init__(c, layer)
        self.rotary_name = c.rope_name(layer)


class TwoRopes(llama.LlamaModel):
    def __init__(self, c: Any) -> None:
        super().__init__(c)
        self.rotary_emb_local = RotaryEmbedding(c.local_rope, c.head_dim)
        self.rotary_emb_local.family = self.family

    def rotary_tables(self, positions: RotaryPositions, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {**super().rotary_tables(positions, dtype), "local": self.rotary_emb_local(positions, dtype)}
