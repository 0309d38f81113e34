"""Tasks over a head that scores whole texts: text-classification, zero-shot-classification.

Which label a text has, or a text and a second one; and which of the caller's own labels fits a text, by a model that was
trained on entailment: each label becomes a sentence, and the model says whether the text entails it
(https://arxiv.org/abs/1909.00161).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glassformer.blueprints import Head
from glassformer.ground.errors import InputError, SettingError
from glassformer.tasks.forward import EncodedRow, ForwardTask, TruncationOptions, input_rows, softmax
from glassformer.tasks.task import TaskOptions, check_positive, parse_pair

FUNCTIONS = ("softmax", "sigmoid", "none")
BEST = "best"


@dataclass(frozen=True)
class LabelOptions(TruncationOptions):
    CHOICES: ClassVar = {"function_to_apply": FUNCTIONS}

    top_k: int | str | None = BEST  # how many labels, None for all; by default the best alone, not in a list
    function_to_apply: str | None = None  # softmax, sigmoid or none; by default as the model was trained

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k != BEST:
            check_positive("top_k", self.top_k)


class LabelTask(ForwardTask):
    """Tasks over a head that scores whole texts."""

    heads: ClassVar[tuple[Head, ...]] = ("sequence",)

    def split_output(self, output: Any, rows: Sequence[EncodedRow]) -> list[Any]:
        return list(output.logits.float().cpu().numpy())


class TextClassificationTask(LabelTask):
    """The best label, `{"label", "score"}`; with `top_k` a list of them."""

    name = "text-classification"
    about = "which label a text has"
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

    def postprocess(self, item: Any, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: LabelOptions) -> Any:
        scores = apply_function(outputs[0], options.function_to_apply, self.model.config.problem_type, len(outputs[0]))
        order = np.argsort(-scores, kind="stable").tolist()
        labels = [{"label": self.model.label(index), "score": float(scores[index])} for index in order]
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


@dataclass(frozen=True)
class ZeroShotOptions(TaskOptions):
    candidate_labels: str | Sequence[str] | None = None  # a list, or a text with commas
    hypothesis_template: str = "This example is {}."  # the sentence about a label, which stands at {}
    multi_label: bool = False  # whether several labels may fit: then each has a probability of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidate_labels is not None and not self.labels:
            raise SettingError("candidate_labels is empty. Name at least one label.")
        try:
            has_place = self.hypothesis_template.format("a") != self.hypothesis_template.format("b")
        except (ValueError, LookupError, AttributeError):
            has_place = False
        if not has_place:
            raise SettingError(
                f"hypothesis_template is {self.hypothesis_template!r}; it must have {{}} where the label goes, and no other."
            )

    @property
    def labels(self) -> list[str]:
        named = self.candidate_labels or ()
        labels = named.split(",") if isinstance(named, str) else named
        return [label.strip() for label in labels if label.strip()]


class ZeroShotClassificationTask(LabelTask):
    """The caller's labels, best first: `{"sequence", "labels", "scores"}`."""

    name = "zero-shot-classification"
    about = "which of your own labels a text has"
    suggested = "facebook/bart-large-mnli"
    example = "My phone is broken. -o candidate_labels=urgent,later"
    options_type = ZeroShotOptions

    def __call__(self, inputs: Any, candidate_labels: str | Sequence[str] | None = None, **options: Any) -> Any:
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        return super().__call__(inputs, **options)

    def preprocess(self, items: Sequence[str], options: ZeroShotOptions) -> list[EncodedRow]:
        """A row for each text and label; a text that is too long is cut, its label never."""
        if not options.labels:
            raise SettingError(
                "zero-shot-classification needs candidate_labels, such as candidate_labels=['urgent', 'later']."
            )
        self._entailment()  # refuse a model without it before it reads anything
        sentences = [options.hypothesis_template.format(label) for label in options.labels]
        if long := next((text for text in sentences if len(self.tokenizer(text)["input_ids"]) > self.limit // 2), None):
            raise InputError(f"the label's sentence {long[:40]!r}… leaves no room for a text. Shorten it.")
        pairs = [(item, sentence) for item in items for sentence in sentences]
        rows = input_rows(self.tokenizer(pairs, truncation="only_first", max_length=self.limit))
        return [EncodedRow(row.owner // len(sentences), row.columns) for row in rows]

    def postprocess(
        self, item: str, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: ZeroShotOptions
    ) -> dict[str, Any]:
        entailment = self._entailment()
        logits = np.stack(outputs)  # (labels, classes)
        if options.multi_label or len(outputs) == 1:
            contradiction = -1 if entailment == 0 else 0
            scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
        else:
            scores = softmax(logits[:, entailment])
        order = scores.argsort()[::-1].tolist()
        labels = [options.labels[index] for index in order]
        return {"sequence": item, "labels": labels, "scores": scores[order].tolist()}

    def _entailment(self) -> int:
        """The index of the model's label that says that one sentence follows from another."""
        names = [self.model.label(index) for index in range(self.model.config.label_count)]
        for index, name in enumerate(names):
            if name.lower().startswith("entail"):
                return index
        raise InputError(
            f"zero-shot-classification needs a model with a label 'entailment', and {self.model.name} has "
            f"{', '.join(names)}. Use {self.suggested!r} or a similar model."
        )
