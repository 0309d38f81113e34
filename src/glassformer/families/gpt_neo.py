"""GPT-Neo: GPT-2's blocks with a projection for each of query, key and value; every other layer looks back over a window.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.blueprints.gpt_neo import SCALE, Config
from glassformer.families import gpt2
from glassformer.layers import FamilyModule, ForwardPass, Linear


class GPTNeoSelfAttention(gpt2.GPTAttention):
    printed_name = "SelfAttention"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, c: Config, layer: int) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.head_dim, bias=False, output_bias=True)
        self.scale = SCALE
        self.window = c.window(layer)
        self.add_dropouts(c)


class GPTNeoAttention(FamilyModule):
    """Checkpoints have a module more around each layer's attention."""

    printed_name = "Attention"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.attention = GPTNeoSelfAttention(c, layer)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.attention(x, p)


class GPTNeoMLP(gpt2.GPT2MLP):
    def make_linear(self, inputs: int, outputs: int) -> nn.Module:
        return Linear(inputs, outputs)


class GPTNeoBlock(gpt2.GPT2Block):
    attention = GPTNeoAttention
    mlp_class = GPTNeoMLP


class GPTNeoModel(gpt2.GPT2Model):
    family = "GPTNeo"
    config_class = Config
    class_suffixes = {}
    block = GPTNeoBlock


Model = GPTNeoModel
