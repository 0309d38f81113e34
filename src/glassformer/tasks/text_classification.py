"""text-classification: which label a text has, or a text and a second one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.tasks.forward import ForwardTask, InputRow, TruncationOptions, encode_pairs, softmax
from glassformer.tasks.task import check_choice, check_positive, parse_pair

FUNCTIONS = ("softmax", "sigmoid", "none")
BEST = "best"


@dataclass(frozen=True)
class LabelOptions(TruncationOptions):
    top_k: int | str | None = BEST  # how many labels, None for all; by default the best alone, not in a list
    function_to_apply: str | None = None  # softmax, sigmoid or none; by default as the model was trained

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k != BEST:
            check_positive(self, "top_k")
        check_choice(self, "function_to_apply", FUNCTIONS)


class TextClassificationTask(ForwardTask):
    """The best label, `{"label", "score"}`; with `top_k` a list of them."""

    name = "text-classification"
    about = "which label a text has"
    heads = ("sequence",)
    suggested = "distilbert-sst2"
    example = "I love this film!"
    options_type = LabelOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        answers = super().__call__(inputs, **options)
        return [answers] if isinstance(inputs, str) and "top_k" not in options else answers  # as in transformers

    def is_single(self, inputs: Any, options: Any) -> bool:
        return super().is_single(inputs, options) or (isinstance(inputs, tuple) and len(inputs) == 2)

    def parse_input(self, value: Any, options: Any) -> tuple[str, str | None]:
        return parse_pair(value)

    def preprocess(self, items: Sequence[tuple[str, str | None]], options: LabelOptions) -> list[InputRow]:
        return encode_pairs(self, items, options)

    def split_output(self, output: Any, rows: Sequence[InputRow]) -> list[Any]:
        return list(output.logits.float().cpu().numpy())

    def postprocess(self, item: Any, rows: Sequence[InputRow], outputs: Sequence[Any], options: LabelOptions) -> Any:
        scores = apply_function(outputs[0], options.function_to_apply, self.model.config.problem_type, len(outputs[0]))
        order = np.argsort(-scores, kind="stable").tolist()
        labels = [{"label": self.model.label(number), "score": float(scores[number])} for number in order]
        return labels[0] if isinstance(options.top_k, str) else labels[: options.top_k]


def apply_function(logits: Any, function: str | None, problem: str | None, labels: int) -> Any:
    """A classifier's scores as it was trained to give them, or as a function's name says."""
    if function is None:
        problem = problem or ("single" if labels > 1 else "multi")
        function = "none" if problem == "regression" else "softmax" if problem.startswith("single") else "sigmoid"
    match function.lower():
        case "softmax":
            return softmax(logits)
        case "sigmoid":
            return 1 / (1 + np.exp(-logits))
    return logits
