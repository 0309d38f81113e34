"""text-classification: which label a text has, or a text and a second one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.tasks.reading import CutOptions, Reading, Row, encode_pairs, softmax
from glassformer.tasks.task import check_choice, check_positive, paired

FUNCTIONS = ("softmax", "sigmoid", "none")
BEST = "best"


@dataclass(frozen=True)
class LabelOptions(CutOptions):
    top_k: int | str | None = BEST  # the best so many labels, or None for all; by default the best alone, not in a list
    function_to_apply: str | None = None  # softmax, sigmoid or none; by default as the model was trained

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k != BEST:
            check_positive(self, "top_k")
        check_choice(self, "function_to_apply", FUNCTIONS)


class TextClassification(Reading):
    """The best label, `{"label", "score"}`; with `top_k` a list of them."""

    name = "text-classification"
    about = "which label a text has"
    heads = ("sequence",)
    suggested = "distilbert-sst2"
    example = "I love this film!"
    Options = LabelOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        return [found] if isinstance(inputs, str) and "top_k" not in options else found  # as the field has it

    def single(self, inputs: Any, options: Any) -> bool:
        return super().single(inputs, options) or (isinstance(inputs, tuple) and len(inputs) == 2)

    def check(self, given: Any, options: Any) -> tuple[str, str | None]:
        return paired(given)

    def rows(self, items: Sequence[tuple[str, str | None]], options: LabelOptions) -> list[Row]:
        return encode_pairs(self, items, options)

    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        return list(output.logits.float().cpu().numpy())

    def conclude(self, item: Any, rows: Sequence[Row], found: Sequence[Any], options: LabelOptions) -> Any:
        scores = self._scores(found[0], options.function_to_apply)
        order = np.argsort(-scores, kind="stable").tolist()
        labels = [{"label": self.model.label(at), "score": float(scores[at])} for at in order]
        return labels[0] if isinstance(options.top_k, str) else labels[: options.top_k]

    def _scores(self, scores: Any, function: str | None) -> Any:
        if function is None:
            kind = self.model.config.problem_type or ("single" if len(scores) > 1 else "multi")
            function = "none" if kind == "regression" else "softmax" if kind.startswith("single") else "sigmoid"
        match function.lower():
            case "softmax":
                return softmax(scores)
            case "sigmoid":
                return 1 / (1 + np.exp(-scores))
        return scores
