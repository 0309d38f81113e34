"""zero-shot-classification: which of the caller's own labels fits a text, by a model that was trained on entailment.

Each label becomes a sentence, and the model says whether the text entails it (https://arxiv.org/abs/1909.00161).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.ground.errors import InputError, SettingError
from glassformer.tasks.forward import ForwardTask, InputRow, input_rows, softmax
from glassformer.tasks.task import TaskOptions


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


class ZeroShotClassificationTask(ForwardTask):
    """The caller's labels, best first: `{"sequence", "labels", "scores"}`."""

    name = "zero-shot-classification"
    about = "which of your own labels a text has"
    heads = ("sequence",)
    suggested = "facebook/bart-large-mnli"
    example = "My phone is broken. -o candidate_labels=urgent,later"
    options_type = ZeroShotOptions

    def __call__(self, inputs: Any, candidate_labels: str | Sequence[str] | None = None, **options: Any) -> Any:
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        return super().__call__(inputs, **options)

    def preprocess(self, items: Sequence[str], options: ZeroShotOptions) -> list[InputRow]:
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
        return [InputRow(row.owner // len(sentences), row.columns) for row in rows]

    def split_output(self, output: Any, rows: Sequence[InputRow]) -> list[Any]:
        return list(output.logits.float().cpu().numpy())

    def postprocess(
        self, item: str, rows: Sequence[InputRow], outputs: Sequence[Any], options: ZeroShotOptions
    ) -> dict[str, Any]:
        entailment = self._entailment()
        logits = np.stack(outputs)  # (labels, classes)
        if options.multi_label or len(outputs) == 1:
            contradiction = -1 if entailment == 0 else 0
            scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
        else:
            scores = softmax(logits[:, entailment])
        order = scores.argsort()[::-1].tolist()
        labels = [options.labels[number] for number in order]
        return {"sequence": item, "labels": labels, "scores": scores[order].tolist()}

    def _entailment(self) -> int:
        """The number of the model's label that says that one sentence follows from another."""
        names = [self.model.label(index) for index in range(self.model.config.label_count)]
        for index, name in enumerate(names):
            if name.lower().startswith("entail"):
                return index
        raise InputError(
            f"zero-shot-classification needs a model with a label 'entailment', and {self.model.name} has "
            f"{', '.join(names)}. Use {self.suggested!r} or a similar model."
        )
