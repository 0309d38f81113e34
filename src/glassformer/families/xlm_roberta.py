"""XLM-RoBERTa: RoBERTa under another name."""

from __future__ import annotations

from glassformer.blueprints.xlm_roberta import Config
from glassformer.families import roberta


class XLMRobertaModel(roberta.RobertaModel):
    family = "XLMRoberta"
    config_class = Config


Model = XLMRobertaModel
