"""RoBERTa: BERT's blocks; positions begin after the padding id; heads of its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from glassformer.blueprints.roberta import Config
from glassformer.families import bert
from glassformer.families.shared.head_modules import ClassificationHead
from glassformer.layers import FamilyModule, LayerNorm, Linear


class RobertaLMHead(FamilyModule):
    printed_name = "LMHead"

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

    def encoder_positions(self, columns: Tensor, real_tokens: Tensor) -> Tensor:
        """Padding has a row of its own in the table: the one before the first token's."""
        return (real_tokens.cumsum(-1) - 1).masked_fill(~real_tokens, -1)


Model = RobertaModel
