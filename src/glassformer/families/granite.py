"""Granite: Llama's blocks with four multipliers: of embeddings, attention scores, updates and scores.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from torch import Tensor

from glassformer.blueprints.granite import Config
from glassformer.families import llama
from glassformer.families.shared.head_modules import LMHead
from glassformer.layers import ForwardPass, GatedMLP


class GraniteAttention(llama.LlamaAttention):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.scale = c.attention_multiplier
        self.multiplier = c.residual_multiplier

    def project_output(self, joined: Tensor) -> Tensor:
        return super().project_output(joined) * self.multiplier


class GraniteMLP(GatedMLP):
    multiplier = 1.0

    def down(self, neurons: Tensor) -> Tensor:
        return super().down(neurons) * self.multiplier


class GraniteDecoderLayer(llama.LlamaDecoderLayer):
    attention = GraniteAttention
    mlp_class = GraniteMLP

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        assert isinstance(self.mlp, GraniteMLP)
        self.mlp.multiplier = c.residual_multiplier


class GraniteLMHead(LMHead):
    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.divisor = c.logits_scaling

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states) / self.divisor


class GraniteModel(llama.LlamaModel):
    family = "Granite"
    config_class = Config
    layer = GraniteDecoderLayer
    heads = {"causal": ("lm_head", GraniteLMHead)}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return super().compute(x * self.config.embedding_multiplier, p)


Model = GraniteModel
