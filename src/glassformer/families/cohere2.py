"""Command R7B: attention and MLP read the same norm, side by side; only layers with a window have RoPE.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from torch import Tensor

from glassformer.blueprints.cohere2 import Config
from glassformer.families import llama, smollm3
from glassformer.families.shared.head_modules import LMHead
from glassformer.layers import Block, ForwardPass, GatedMLP, LayerNorm


class Cohere2LayerNorm(LayerNorm):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps, bias=False)


class Cohere2DecoderLayer(Block):
    printed_name = "DecoderLayer"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = smollm3.SmolLM3Attention(c, layer)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act)
        self.input_layernorm = Cohere2LayerNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        h = self.input_layernorm(x)
        x = self.add(x, self.self_attn(h, p), p, "middle")
        return self.add(x, self.mlp(h, p), p, "residual")


class Cohere2LMHead(LMHead):
    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.multiplier = c.logit_scale

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states) * self.multiplier


class Cohere2Model(llama.LlamaModel):
    family = "Cohere2"
    config_class = Config
    layer = Cohere2DecoderLayer
    norm_class = Cohere2LayerNorm
    heads = {"causal": ("lm_head", Cohere2LMHead)}


Model = Cohere2Model
