"""PEGASUS: BART's blocks with their norms before attention and MLP, and Marian's sinusoidal positions.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from torch import Tensor

from glassformer.blueprints.bart import EPS
from glassformer.blueprints.bart import Config as BartConfig
from glassformer.blueprints.pegasus import Config
from glassformer.families import bart, marian
from glassformer.layers import MLP, ForwardPass, LayerNorm


class PegasusEncoderLayer(bart.BartEncoderLayer):
    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.dropout(self.self_attn(self.self_attn_layer_norm(x), p)), p, "middle")
        return self.add(x, MLP.forward(self, self.final_layer_norm(x), p), p, "residual")


class PegasusDecoderLayer(bart.BartDecoderLayer):
    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.dropout(self.self_attn(self.self_attn_layer_norm(x), p)), p, "middle")
        x = self.add(x, self.dropout(self.encoder_attn(self.encoder_attn_layer_norm(x), p)), p, "crossed")
        return self.add(x, MLP.forward(self, self.final_layer_norm(x), p), p, "residual")


class PegasusStack(marian.MarianStack):
    def add_positions(self, c: BartConfig) -> None:
        super().add_positions(c)
        self.layer_norm = LayerNorm(c.hidden_size, EPS)

    def final_states(self, x: Tensor) -> Tensor:
        return self.layer_norm(x)


class PegasusModel(marian.MarianModel):
    family = "Pegasus"
    config_class = Config
    class_suffixes = {}
    stack_class = PegasusStack
    encoder_layer = PegasusEncoderLayer
    decoder_layer = PegasusDecoderLayer

    def final_states(self, x: Tensor) -> Tensor:
        return self.decoder.final_states(x)


Model = PegasusModel
