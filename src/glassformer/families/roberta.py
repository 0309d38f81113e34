"""RoBERTa: BERT's blocks; positions begin behind the padding id; heads of its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from glassformer.blueprints.roberta import Config
from glassformer.families import bert
from glassformer.families.shared.parts import ClassificationHead
from glassformer.layers import LayerNorm, Linear, Part


class RobertaLMHead(Part):
    shown = "LMHead"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.layer_norm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.decoder = Linear(c.hidden_size, c.vocab_size)
        self.bias = self.decoder.bias  # files have it under both names

    @property
    def output(self) -> Linear:
        return self.decoder

    def forward(self, states: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(F.gelu(self.dense(states))))


class RobertaModel(bert.BertModel):
    family = "Roberta"
    config_class = Config
    prefix = "roberta"
    heads = {
        **bert.BertModel.heads, "masked": ("lm_head", RobertaLMHead), "sequence": ("classifier", ClassificationHead),
    }  # fmt: skip

    def places(self, columns: Tensor, present: Tensor) -> Tensor:
        """Padding has a row of its own in the table: the one before the first token's."""
        return (present.cumsum(-1) - 1).masked_fill(~present, -1)


Model = RobertaModel
