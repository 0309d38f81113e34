"""XLM-RoBERTa (https://arxiv.org/abs/1911.02116): RoBERTa for a hundred languages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from glassformer.blueprints import roberta
from glassformer.blueprints.roberta import blueprint as blueprint


@dataclass(kw_only=True)
class Config(roberta.Config):
    model_type: ClassVar[str] = "xlm-roberta"
    title: ClassVar[str] = "XLM-RoBERTa"
    default_fields: ClassVar[Mapping[str, Any]] = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12}


FAMILY = replace(roberta.FAMILY, name="XLMRoberta")
