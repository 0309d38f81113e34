"""UMT5 (https://arxiv.org/abs/2304.09151): mT5 with biases of distances in every block, and scaled scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from glassformer.blueprints import mt5, t5
from glassformer.blueprints.t5 import blueprint as blueprint


@dataclass(kw_only=True)
class Config(mt5.Config):
    model_type = "umt5"
    title = "UMT5"
    fixed_fields = {"scale_decoder_outputs": True}
    biases_in_every_block: ClassVar[bool] = True

    scale_decoder_outputs: bool = True

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Scores are scaled whether or not the head is tied."""
        return super().prepare(raw) | {"scale_decoder_outputs": True}


FAMILY = replace(t5.FAMILY, name="UMT5")
