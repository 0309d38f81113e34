"""mT5: T5 under another name."""

from __future__ import annotations

from glassformer.blueprints.mt5 import Config
from glassformer.families import t5
from glassformer.families.shared.seq2seq import EncoderPart


class MT5Model(t5.T5Model):
    family = "MT5"
    config_class = Config


class MT5EncoderModel(EncoderPart, MT5Model):
    pass


Model = MT5Model
EncoderModel = MT5EncoderModel
