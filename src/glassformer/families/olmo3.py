"""OLMo 3: OLMo 2's blocks; most look back over a window, with a RoPE of their own."""

from __future__ import annotations

from glassformer.blueprints.olmo3 import Config
from glassformer.families import olmo2
from glassformer.families.shared.two_ropes import TwoRopes, TwoRopesAttention


class Olmo3Attention(TwoRopesAttention, olmo2.Olmo2Attention):
    pass


class Olmo3DecoderLayer(olmo2.Olmo2DecoderLayer):
    attention = Olmo3Attention


class Olmo3Model(TwoRopes, olmo2.Olmo2Model):
    family = "Olmo3"
    config_class = Config
    layer = Olmo3DecoderLayer


Model = Olmo3Model
