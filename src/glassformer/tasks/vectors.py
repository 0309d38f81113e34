"""embed and similarity: a text as one vector, and how alike two texts are. feature-extraction: every token's state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.sentence import SIMILARITIES, Dense, Sentence
from glassformer.errors import InputError, SettingError, nearest
from glassformer.tasks.reading import CutOptions, Reading, Row, cut, encode_pairs, rows_of
from glassformer.tasks.task import Options, check_choice, check_positive, paired

Floats = npt.NDArray[np.float32]
note = logging.getLogger("glassformer").warning

POOLING: Mapping[str, Callable[[Floats], Floats]] = {  # (tokens, hidden) to (hidden,)
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / np.sqrt(np.float32(len(states))),
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
    "lasttoken": lambda states: states[-1],
}
ACTIVATION: Mapping[str, Callable[[Floats], Floats]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}


@dataclass(frozen=True)
class EmbedOptions(Options):
    pooling: str | None = None  # how states become one vector: cls, max, mean, …; by default as the model says
    normalize: bool | None = None  # to length 1; by default as the model says
    prompt_name: str | None = None  # one of the model's own prompts, put before each text
    prompt: str | None = None  # another one
    truncate_dim: int | None = None  # keep the first so many numbers, for models trained to allow it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "truncate_dim")
        check_choice(self, "pooling", POOLING)


class Encoding(Reading):
    """Tasks over a model's states, whichever head it has."""

    heads = ("base", "masked", "sequence", "token", "question", "causal")
    model_name = "minilm"
    suggested = "minilm"

    def run(self, rows: Sequence[Row], options: Any) -> list[Any]:
        """The states of each row: by the CPU engine, which needs neither PyTorch nor padding, or by the module."""
        reader = self.model.reader
        if reader is None:
            return super().run(rows, options)
        typed = rows and "token_type_ids" in rows[0].columns
        types = [row.columns["token_type_ids"] for row in rows] if typed else None
        found: list[Any] = reader.read([row.columns["input_ids"] for row in rows], types)
        return found

    def forward(self, **inputs: Any) -> Any:
        return self.model.module.base_model(**inputs)


class Embed(Encoding):
    """One vector per text, (hidden,); (texts, hidden) for a list."""

    name = "embed"
    about = "a text as a vector"
    example = "How old are you?"
    Options = EmbedOptions

    @cached_property
    def sentence(self) -> Sentence:
        """How the model's states become one vector."""
        return self.model.sentence

    @property
    def limit(self) -> int:
        return min(super().limit, self.sentence.limit or super().limit)

    def rows(self, items: Sequence[str], options: EmbedOptions) -> list[Row]:
        prompt = self._prompt(options)
        texts = [prompt + item for item in items]
        rows = rows_of(self.tokenizer(texts))
        if long := [row.owner for row in rows if len(row) > self.limit]:
            note(
                f"{len(long)} of {len(rows)} texts have more than the {self.limit} tokens that {self.model.name} reads; cut."
            )
            short = self.tokenizer([texts[owner] for owner in long], truncation=True, max_length=self.limit)
            for owner, row in zip(long, rows_of(short), strict=True):
                rows[owner] = Row(owner, row.columns)
        return rows

    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        return cut(output.last_hidden_state, rows)

    def conclude(self, item: str, rows: Sequence[Row], found: Sequence[Floats], options: EmbedOptions) -> Floats:
        states = found[0][self._skipped(options) :]
        ways = self.sentence.pooling if options.pooling is None else (options.pooling,)
        vector = np.concatenate([POOLING[way](states) for way in ways])
        for layer in self.sentence.dense:
            vector = _through(layer, vector)
        vector = vector[: options.truncate_dim]
        if self.sentence.normalize if options.normalize is None else options.normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return vector.astype(np.float32)

    def shaped(self, found: list[Any], options: Any) -> Any:
        return np.stack(found) if found else np.zeros((0, self.model.config.hidden_size), np.float32)

    def _prompt(self, options: EmbedOptions) -> str:
        if options.prompt is not None:
            return options.prompt
        name = options.prompt_name or self.sentence.prompt
        if name is not None and name not in self.sentence.prompts:
            known = ", ".join(self.sentence.prompts) or "none"
            raise SettingError(
                f"{self.model.name} has no prompt {name!r}.{nearest(name, self.sentence.prompts)} It has: {known}."
            )
        return "" if name is None else self.sentence.prompts[name]

    def _skipped(self, options: EmbedOptions) -> int:
        """The tokens that are left out of the pooling: a prompt's, for models that were trained so."""
        prompt = self._prompt(options)
        if self.sentence.pool_prompt or not prompt:
            return 0
        around = self.tokenizer.num_special_tokens_to_add()
        return len(self.tokenizer(prompt)["input_ids"]) - (1 if around else 0)


@dataclass(frozen=True)
class SimilarityOptions(EmbedOptions):
    function: str | None = None  # cosine, dot, euclidean or manhattan; by default as the model says

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "function", SIMILARITIES)


class Similarity(Embed):
    """How alike two texts are: a number for a pair; numbers for a text and a list; a table for two lists."""

    name = "similarity"
    about = "how alike texts are"
    example = "'How old are you?' 'What is your age?'"
    Options = SimilarityOptions

    def __call__(self, inputs: Any, others: Any = None, **options: Any) -> Any:
        if others is None:
            return super().__call__(inputs, **options)
        chosen = self._given(options)
        sides = [[one] if isinstance(one, str) else list(one) for one in (inputs, others)]
        if not all(sides):
            return np.zeros((len(sides[0]), len(sides[1])), np.float32)
        vectors = self.vectors([paired(text)[0] for side in sides for text in side], chosen)
        table = self._compare(vectors[: len(sides[0]), None], vectors[None, len(sides[0]) :], chosen)
        table = table if not isinstance(inputs, str) else table[0]
        return table if not isinstance(others, str) else table[..., 0]

    def single(self, inputs: Any, options: Any) -> bool:
        return isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], str)

    def check(self, given: Any, options: Any) -> tuple[str, str]:
        first, second = paired(given)
        if second is None:
            raise InputError("similarity compares two texts: ('…', '…').")
        return first, second

    def answer(self, items: Sequence[Any], options: Any) -> list[float]:
        vectors = self.vectors([text for pair in items for text in pair], options)
        return [float(one) for one in self._compare(vectors[::2], vectors[1::2], options)]

    def vectors(self, texts: Sequence[str], options: Any) -> Floats:
        """Each text's vector; one that stands there twice is read once."""
        once = list(dict.fromkeys(texts))
        found = dict(zip(once, super().answer(once, options), strict=True))
        return np.stack([found[text] for text in texts])

    def shaped(self, found: list[Any], options: Any) -> Any:
        return found

    def _compare(self, left: Floats, right: Floats, options: SimilarityOptions) -> Floats:
        match options.function or self.sentence.similarity:
            case "dot":
                found = (left * right).sum(-1)
            case "euclidean":
                found = -np.linalg.norm(left - right, axis=-1)
            case "manhattan":
                found = -np.abs(left - right).sum(-1)
            case _:
                lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
                found = (left * right).sum(-1) / np.maximum(lengths, 1e-12)
        return np.asarray(found, np.float32)


@dataclass(frozen=True)
class FeatureOptions(CutOptions):
    return_tensors: bool = False  # give a torch tensor instead of lists


class FeatureExtraction(Encoding):
    """Every token's last state, (1, tokens, hidden), as nested lists or a tensor."""

    name = "feature-extraction"
    about = "every token's state"
    example = "Hello world"
    Options = FeatureOptions

    def rows(self, items: Sequence[Any], options: FeatureOptions) -> list[Row]:
        return encode_pairs(self, [(item, None) for item in items], options)

    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        return cut(output.last_hidden_state, rows)

    def conclude(self, item: Any, rows: Sequence[Row], found: Sequence[Floats], options: FeatureOptions) -> Any:
        if not options.return_tensors:
            return found[0][None].tolist()
        import torch

        return torch.from_numpy(found[0][None].copy())


def _through(layer: Dense, vector: Floats) -> Floats:
    out = layer.weight @ vector
    return ACTIVATION[layer.activation](out if layer.bias is None else out + layer.bias)
