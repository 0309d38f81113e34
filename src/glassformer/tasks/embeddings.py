"""embed and similarity: a text as one vector, and how similar two texts are. feature-extraction: every token's state."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.sentence_pooling import SIMILARITIES, SentenceSettings
from glassformer.checkpoint.sentence_vectors import (
    POOLING,
    prompted_text,
    sentence_vector,
    similarity,
    unpooled_tokens,
)
from glassformer.ground.errors import InputError, InputTypeError, SettingError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.tasks.forward import EncodedRow, ForwardTask, TruncationOptions, input_rows, unpad
from glassformer.tasks.task import TaskOptions, parse_pair

Floats = npt.NDArray[np.float32]
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class EmbedOptions(TaskOptions):
    POSITIVE: ClassVar = (*TaskOptions.POSITIVE, "truncate_dim")
    CHOICES: ClassVar = {"pooling": POOLING}

    pooling: str | None = None  # how states become one vector: cls, max, mean, …; by default as the model says
    normalize: bool | None = None  # to length 1; by default as the model says
    prompt_name: str | None = None  # one of the model's own prompts, put before each text
    prompt: str | None = None  # a prompt of your own instead
    truncate_dim: int | None = None  # keep only the first dimensions, for models trained to allow it


class HiddenStatesTask(ForwardTask):
    """Tasks over a model's states, whichever head it has."""

    heads = ("base", "masked", "sequence", "token", "question", "discriminator", "causal")
    model_name = "minilm"
    suggested = "minilm"

    def run_rows(self, rows: Sequence[EncodedRow], options: Any) -> list[Any]:
        """The states of each row: by the CPU engine, which needs neither PyTorch nor padding, or by the module."""
        reader = self.model.reader
        if reader is None:
            return super().run_rows(rows, options)
        typed = rows and "token_type_ids" in rows[0].columns
        types = [row.columns["token_type_ids"] for row in rows] if typed else None
        states: list[Any] = reader.read([row.columns["input_ids"] for row in rows], types)
        return states

    def forward(self, **inputs: Any) -> Any:
        return self.model.module.base_model(**inputs)

    def split_output(self, output: Any, rows: Sequence[EncodedRow]) -> list[Any]:
        return unpad(output.last_hidden_state, rows)


class EmbedTask(HiddenStatesTask):
    """One vector per text, (hidden,); (texts, hidden) for a list."""

    name = "embed"
    about = "a text as a vector"
    example = "How old are you?"
    options_type = EmbedOptions

    @cached_property
    def sentence(self) -> SentenceSettings:
        """How the model's states become one vector."""
        return self.model.sentence

    @property
    def limit(self) -> int:
        return min(super().limit, self.sentence.limit or super().limit)

    def preprocess(self, items: Sequence[str], options: EmbedOptions) -> list[EncodedRow]:
        prompt = self._prompt(options)
        texts = [prompted_text(item, prompt, self.sentence) for item in items]
        rows = input_rows(self.tokenizer(texts))
        if long := [row.owner for row in rows if len(row) > self.limit]:
            note(f"{len(long)} of {len(rows)} texts were cut to the {self.limit} tokens that {self.model.name} reads.")
            truncated = self.tokenizer([texts[owner] for owner in long], truncation=True, max_length=self.limit)
            for owner, row in zip(long, input_rows(truncated), strict=True):
                rows[owner] = EncodedRow(owner, row.columns)
        return rows

    def postprocess(self, item: str, rows: Sequence[EncodedRow], outputs: Sequence[Floats], options: EmbedOptions) -> Floats:
        unpooled = unpooled_tokens(self.tokenizer, self._prompt(options), self.sentence)
        return sentence_vector(
            outputs[0], self.sentence, options.pooling, options.normalize, options.truncate_dim, unpooled
        )  # fmt: skip

    def collect(self, answers: list[Any], options: Any) -> Any:
        return np.stack(answers) if answers else np.zeros((0, self.model.config.hidden_size), np.float32)

    def _prompt(self, options: EmbedOptions) -> str:
        if options.prompt is not None:
            return options.prompt
        name = options.prompt_name or self.sentence.prompt
        if name is not None and name not in self.sentence.prompts:
            known = ", ".join(self.sentence.prompts) or "none"
            raise SettingError(
                f"{self.model.name} has no prompt {name!r}.{did_you_mean(name, self.sentence.prompts)} It has: {known}."
            )
        return "" if name is None else self.sentence.prompts[name]


@dataclass(frozen=True)
class SimilarityOptions(EmbedOptions):
    CHOICES: ClassVar = {**EmbedOptions.CHOICES, "function": SIMILARITIES}

    function: str | None = None  # cosine, dot, euclidean or manhattan; by default as the model says


class SimilarityTask(EmbedTask):
    """How similar two texts are: a number for a pair; numbers for a text and a list; a matrix for two lists."""

    name = "similarity"
    about = "how similar texts are"
    example = "'How old are you?' 'What is your age?'"
    options_type = SimilarityOptions

    def __call__(self, inputs: Any, others: Any = None, **options: Any) -> Any:
        if others is None:
            return super().__call__(inputs, **options)
        merged = self._merge_options(options)
        for texts in (inputs, others):
            if not isinstance(texts, (str, list, tuple)):
                raise InputTypeError(f"similarity takes a text or a list of texts on each side, not {brief(texts)}.")
        left, right = ([texts] if isinstance(texts, str) else list(texts) for texts in (inputs, others))
        if not left or not right:
            return np.zeros((len(left), len(right)), np.float32)
        vectors = self.vectors([parse_pair(text)[0] for text in (*left, *right)], merged)
        matrix = self._compare(vectors[: len(left), None], vectors[None, len(left) :], merged)
        matrix = matrix if not isinstance(inputs, str) else matrix[0]
        return matrix if not isinstance(others, str) else matrix[..., 0]

    def is_single(self, inputs: Any, options: Any) -> bool:
        return isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], str)

    def parse_input(self, value: Any, options: Any) -> tuple[str, str]:
        first, second = parse_pair(value)
        if second is None:
            raise InputError("similarity compares two texts: ('…', '…').")
        return first, second

    def answer(self, items: Sequence[Any], options: Any) -> list[float]:
        vectors = self.vectors([text for pair in items for text in pair], options)
        return [float(value) for value in self._compare(vectors[::2], vectors[1::2], options)]

    def vectors(self, texts: Sequence[str], options: Any) -> Floats:
        """Each text's vector; equal texts are read once."""
        distinct = list(dict.fromkeys(texts))
        vectors = dict(zip(distinct, super().answer(distinct, options), strict=True))
        return np.stack([vectors[text] for text in texts])

    def collect(self, answers: list[Any], options: Any) -> Any:
        return answers

    def _compare(self, left: Floats, right: Floats, options: SimilarityOptions) -> Floats:
        return similarity(options.function or self.sentence.similarity, left, right)


@dataclass(frozen=True)
class FeatureExtractionOptions(TruncationOptions):
    return_tensors: bool = False  # a torch tensor instead of lists


class FeatureExtractionTask(HiddenStatesTask):
    """Every token's last state, (1, tokens, hidden), as nested lists or a tensor."""

    name = "feature-extraction"
    about = "every token's state"
    example = "Hello world"
    options_type = FeatureExtractionOptions

    def postprocess(
        self, item: Any, rows: Sequence[EncodedRow], outputs: Sequence[Floats], options: FeatureExtractionOptions
    ) -> Any:
        if not options.return_tensors:
            return outputs[0][None].tolist()
        import torch

        return torch.from_numpy(outputs[0][None].copy())
