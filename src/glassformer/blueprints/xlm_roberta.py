"""XLM-RoBERTa (https://arxiv.org/abs/1911.02116): RoBERTa for a hundred languages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import roberta
from glassformer.blueprints.roberta import blueprint as blueprint


@dataclass(kw_only=True)
class Config(roberta.Config):
    model_type = "xlm-roberta"
    title = "XLM-RoBERTa"
    default_fields = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12}


FAMILY = replace(roberta.FAMILY, name="XLMRoberta")
