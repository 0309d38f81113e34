"""GPT-2: pre-norm blocks with biases, learned positions, query, key and value in one projection.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from glassformer.blueprints import gpt
from glassformer.blueprints.gpt2 import Config
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.head_modules import Classifier, SpanHead
from glassformer.layers import MLP, ActivationFunction, Attention, Block, Conv1D, Embedding, ForwardPass, LayerNorm


class GPTAttention(Attention):
    """Attention with two dropouts: of its weights, and of what it adds to the residual stream."""

    printed_name = "Attention"
    attn_dropout: nn.Dropout
    resid_dropout: nn.Dropout

    def add_dropouts(self, c: gpt.Config) -> None:
        self.attn_dropout = nn.Dropout(c.attn_pdrop)
        self.resid_dropout = nn.Dropout(c.resid_pdrop)

    @property
    def dropout_rate(self) -> float:
        return self.attn_dropout.p if self.attn_dropout.training else 0.0

    def project_output(self, joined: Tensor) -> Tensor:
        return self.resid_dropout(super().project_output(joined))


class GPT2Attention(GPTAttention):
    projection_names = ("", "", "", "c_proj")

    def __init__(self, c: Config, layer: int) -> None:
        nn.Module.__init__(self)
        self.head_size = c.head_dim
        self.scale = c.scale(layer)
        self.c_attn = Conv1D(3 * c.hidden_size, c.hidden_size)
        self.c_proj = Conv1D(c.hidden_size, c.hidden_size)
        self.add_dropouts(c)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.split_heads(part) for part in self.c_attn(x).chunk(3, -1))
        return query, key, value


class GPT2MLP(MLP):
    printed_name = "MLP"

    def __init__(self, c: gpt.Config) -> None:
        super().__init__()
        self.c_fc = self.make_linear(c.hidden_size, c.inner)
        self.c_proj = self.make_linear(c.inner, c.hidden_size)
        self.act = ActivationFunction(c.hidden_act)
        self.dropout = nn.Dropout(c.resid_pdrop)

    def make_linear(self, inputs: int, outputs: int) -> nn.Module:
        return Conv1D(outputs, inputs)

    def neurons(self, x: Tensor) -> Tensor:
        return self.act(self.c_fc(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.dropout(self.c_proj(neurons))


class GPT2Block(Block):
    printed_name = "Block"
    attention: ClassVar[type[nn.Module]] = GPT2Attention
    mlp_class: ClassVar[type[GPT2MLP]] = GPT2MLP

    def __init__(self, c: gpt.Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(c.hidden_size, c.layer_norm_epsilon)
        self.attn = self.attention(c, layer)
        self.ln_2 = LayerNorm(c.hidden_size, c.layer_norm_epsilon)
        self.mlp = self.mlp_class(c)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.attn(self.ln_1(x), p), p, "middle")
        return self.add(x, self.mlp(self.ln_2(x), p), p, "residual")


class GPT2Model(Decoder):
    family = "GPT2"
    config_class: ClassVar[type[gpt.Config]] = Config
    prefix = "transformer"
    class_suffixes = {"ForCausalLM": "LMHeadModel"}
    heads = {**Decoder.heads, "token": ("", Classifier), "question": ("", SpanHead)}
    block: ClassVar[type[Block]] = GPT2Block

    def __init__(self, c: gpt.Config) -> None:
        super().__init__(c)
        self.wte = Embedding(c.vocab_size, c.hidden_size)
        self.add_positions(c)
        self.drop = nn.Dropout(c.embd_pdrop)
        self.h = nn.ModuleList(self.block(c, number) for number in range(c.num_hidden_layers))
        self.ln_f = LayerNorm(c.hidden_size, c.layer_norm_epsilon)
        self.post_init(self.h)

    def add_positions(self, c: Any) -> None:
        """Make what `placed` needs."""
        self.wpe = Embedding(c.max_position_embeddings, c.hidden_size)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token vectors with their positions."""
        return x + self.wpe(positions)

    @property
    def token_embedding(self) -> Embedding:
        return self.wte

    def check_positions(self, positions: Tensor) -> None:
        self.check_position_table(positions)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", self.drop(self.placed(x, p.positions)), p)
        for block in self.h:
            x = block(x, p)
        return self.at_site("final", self.final_states(x), p)

    def final_states(self, x: Tensor) -> Tensor:
        return self.ln_f(x)


Model = GPT2Model
