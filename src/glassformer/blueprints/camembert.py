"""CamemBERT (https://arxiv.org/abs/1911.03894): RoBERTa for French."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import roberta
from glassformer.blueprints.roberta import blueprint as blueprint


@dataclass(kw_only=True)
class Config(roberta.Config):
    model_type = "camembert"
    title = "CamemBERT"
    default_fields = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12}


FAMILY = replace(roberta.FAMILY, name="Camembert")
