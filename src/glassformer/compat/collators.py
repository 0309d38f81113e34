"""Data collators: rows of a dataset to a batch that `model(**batch)` takes, as transformers has them.

The same rows and the same seed give the same batch as there, masked tokens included: the draws are the same ones, in the
same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from glassformer.ground.errors import InputError
from glassformer.torch.base import IGNORED

Row: TypeAlias = Any  # a mapping, an object with attributes, or (for language models) the ids alone
Batch: TypeAlias = Any  # a mapping of columns
LABEL_NAMES = ("label", "label_ids")  # of a row's label, which a batch has as `labels`


def default_data_collator(features: Sequence[Row], return_tensors: str = "pt") -> dict[str, Any]:
    """Rows that are of one length already, stacked; `label` and `label_ids` become `labels`. Texts are left out."""
    rows = [row if isinstance(row, Mapping) else vars(row) for row in features]
    first = rows[0]
    batch: dict[str, Any] = {}
    if (name := next((name for name in LABEL_NAMES if first.get(name) is not None), None)) is not None:
        labels = np.array([np.asarray(row[name]) for row in rows])
        batch["labels"] = _as_array(labels.astype(np.int64 if labels.dtype.kind in "iu" else np.float32), return_tensors)
    for name, value in first.items():
        if name not in LABEL_NAMES and value is not None and not isinstance(value, str):
            batch[name] = _stack([row[name] for row in rows], return_tensors)
    return batch


@dataclass
class DefaultDataCollator:
    """`default_data_collator` as an object."""

    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Row], return_tensors: str | None = None) -> dict[str, Any]:
        return default_data_collator(features, return_tensors or self.return_tensors)


@dataclass
class DataCollatorWithPadding:
    """Pads the rows of a batch to one length; `label` becomes `labels`.

    Args:
        tokenizer: whose padding token and padding side are used.
        padding, max_length, pad_to_multiple_of, return_tensors: as in `tokenizer.pad`.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Row]) -> Batch:
        batch = _pad_inputs(self, features, self.return_tensors)
        for name in LABEL_NAMES:
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification:
    """Pads rows, and their labels, one for each token, along with them.

    Args:
        tokenizer, padding, max_length, pad_to_multiple_of, return_tensors: as in DataCollatorWithPadding.
        label_pad_token_id: the label of padding; -100 adds nothing to the loss.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Row], return_tensors: str | None = None) -> Batch:
        kind = return_tensors or self.return_tensors
        name, labels, rows = _split_labels(features)
        batch = _pad_inputs(self, rows, kind)
        if labels is not None:
            width = batch["input_ids"].shape[1]
            batch[name] = _pad_rows(labels, width, self.label_pad_token_id, self.tokenizer.padding_side, kind)
        return batch


@dataclass
class DataCollatorForSeq2Seq:
    """Pads sources, and targets (`labels`) to a length of their own.

    Args:
        tokenizer, padding, max_length, pad_to_multiple_of, return_tensors: as in DataCollatorWithPadding.
        model: with an encoder-decoder, the batch also has what its decoder reads, `decoder_input_ids`.
        label_pad_token_id: the label of padding; -100 adds nothing to the loss.
    """

    tokenizer: Any
    model: Any = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Row], return_tensors: str | None = None) -> Batch:
        kind = return_tensors or self.return_tensors
        _, labels, rows = _split_labels(features)
        batch = _pad_inputs(self, rows, kind)
        if labels is None:
            batch["labels"] = None
            return batch
        width = self._label_width(labels)
        batch["labels"] = _pad_rows(labels, width, self.label_pad_token_id, self.tokenizer.padding_side, kind)
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch

    def _label_width(self, labels: Sequence[Any]) -> int:
        longest = max(map(len, labels))
        if self.padding in (False, "do_not_pad"):
            return longest
        width = self.max_length if self.padding == "max_length" and self.max_length is not None else longest
        return _rounded_up(width, self.pad_to_multiple_of)


@dataclass
class DataCollatorForLanguageModeling:
    """Batches to train a language model on: `labels` are the ids, or those that were masked.

    Args:
        tokenizer: pads, and has the mask token.
        mlm: for a model that guesses masked tokens; False: for one that predicts the next token.
        whole_word_mask: mask all tokens of a word or none; rows then need `offset_mapping`.
        mlm_probability: the share of tokens to be guessed.
        mask_replace_prob, random_replace_prob: of those, the shares that a mask and a random token stand in for; the rest
            is shown as it is. With whole words, all are masked.
        pad_to_multiple_of, return_tensors: as in `tokenizer.pad`.
        seed: of the draws; in a data loader's worker its number is added. By default torch's (or numpy's) own generator.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None

    def __post_init__(self) -> None:
        self._draws: dict[str, Draws] = {}  # by kind of tensor
        if self.whole_word_mask:
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0
        if not self.mlm:
            if self.whole_word_mask:
                raise InputError("whole_word_mask=True masks words, which mlm=False does not. Leave one of them out.")
            return
        if self.tokenizer.mask_token is None:
            raise InputError(
                "the tokenizer has no mask token, which mlm=True needs. Pass mlm=False to train on the next token."
            )
        shares = {
            "mlm_probability": self.mlm_probability, "mask_replace_prob": self.mask_replace_prob,
            "random_replace_prob": self.random_replace_prob,
        }  # fmt: skip
        for name, share in shares.items():
            if share is None or not 0 <= share <= 1:
                raise InputError(f"{name} is {share}; it must be a share between 0 and 1.")
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise InputError("mask_replace_prob and random_replace_prob are shares of one whole, and together exceed 1.")

    def __call__(self, features: Sequence[Row], return_tensors: str | None = None) -> Batch:
        kind = return_tensors or self.return_tensors
        _check_kind(kind)
        offsets, rows = None, list(features)
        if isinstance(rows[0], Mapping):
            offsets = [row["offset_mapping"] for row in rows] if "offset_mapping" in rows[0] else None
            rows = [{name: value for name, value in row.items() if name != "offset_mapping"} for row in rows]
            batch = self.tokenizer.pad(rows, pad_to_multiple_of=self.pad_to_multiple_of, return_tensors=kind)
        else:
            batch = {"input_ids": self._pad_ids(rows, kind)}
        special = batch.pop("special_tokens_mask", None)
        ids = np.asarray(batch["input_ids"])
        if self.mlm:
            if special is None:
                special = np.isin(ids, self.tokenizer.all_special_ids)
            ids, labels = self._mask(ids, np.asarray(special).astype(bool), offsets, kind)
            batch["input_ids"] = _as_array(ids, kind)
        else:
            labels = np.where(ids == self.tokenizer.pad_token_id, IGNORED, ids)
        batch["labels"] = _as_array(labels, kind)
        return batch

    def _pad_ids(self, rows: Sequence[Any], kind: str) -> Any:
        width = _rounded_up(max(map(len, rows)), self.pad_to_multiple_of)
        pad = self.tokenizer.pad_token_id
        if pad is None and any(len(row) < width for row in rows):
            raise InputError("the tokenizer has no padding token. Set one: tokenizer.pad_token = tokenizer.eos_token.")
        return _pad_rows(rows, width, pad, self.tokenizer.padding_side, kind)

    def _mask(
        self, ids: NDArray[Any], special: NDArray[Any], offsets: Sequence[Any] | None, kind: str
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids with some of them hidden, and as labels those that are to be guessed, -100 elsewhere."""
        draws = self._draws_of(kind)
        assert self.mlm_probability is not None
        if self.whole_word_mask:
            words = self._word_numbers(offsets, special)
            first = np.diff(words, axis=1, prepend=0) > 0  # one draw for a word, at its first token
            chosen = draws.chances(np.where(first, self.mlm_probability, 0.0))
            chosen_words = (row[hit] for row, hit in zip(words, chosen, strict=True))
            guessed = np.stack([np.isin(row, hit) for row, hit in zip(words, chosen_words, strict=True)]) & ~special
        else:
            guessed = draws.chances(np.where(special, 0.0, self.mlm_probability))
        labels = np.where(guessed, ids, IGNORED)
        masked = draws.chances(np.full(ids.shape, self.mask_replace_prob)) & guessed
        ids = np.where(masked, self.tokenizer.mask_token_id, ids)
        if self.mask_replace_prob < 1 and self.random_replace_prob > 0:
            share = self.random_replace_prob / (1 - self.mask_replace_prob)
            replaced = draws.chances(np.full(ids.shape, share)) & guessed & ~masked
            ids[replaced] = draws.whole_numbers(len(self.tokenizer), replaced)
        return ids, labels

    def _word_numbers(self, offsets: Sequence[Any] | None, special: NDArray[Any]) -> NDArray[Any]:
        """The number of each token's word, counted from 1 in its row. A word begins after a gap or a special token."""
        if offsets is None:
            raise InputError("whole_word_mask needs to know the words: encode with return_offsets_mapping=True.")
        width, side = special.shape[1], self.tokenizer.padding_side
        spans = np.stack(
            [_pad_rows([row[:, end] for row in map(np.asarray, offsets)], width, 0, side, "np") for end in (0, 1)]
        )
        starts, ends = spans
        before = np.pad(ends[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        after_special = np.pad(special[:, :-1], ((0, 0), (1, 0)))
        begins = ~special & ((starts != before) | after_special)
        return np.cumsum(begins, axis=1)

    def _draws_of(self, kind: str) -> Draws:
        if kind not in self._draws:
            worker = get_worker_info()
            seed = None if self.seed is None else self.seed + (0 if worker is None else worker.id)
            self._draws[kind] = TorchDraws(seed) if kind == "pt" else NumpyDraws(seed)
        return self._draws[kind]


class Draws(Protocol):
    """Random numbers, from one generator or another."""

    def chances(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """True with these probabilities."""

    def whole_numbers(self, below: int, where: NDArray[Any]) -> NDArray[Any]:
        """A number for each place that is True."""


class TorchDraws:
    def __init__(self, seed: int | None) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def chances(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        return torch.bernoulli(torch.from_numpy(probabilities).float(), generator=self._generator).bool().numpy()

    def whole_numbers(self, below: int, where: NDArray[Any]) -> NDArray[Any]:
        numbers = torch.randint(below, where.shape, generator=self._generator)
        return numbers[torch.from_numpy(where)].numpy()


class NumpyDraws:
    def __init__(self, seed: int | None) -> None:
        self._generator = None if seed is None else np.random.default_rng(seed)

    def chances(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        drawn: NDArray[Any] = (self._generator or np.random).binomial(1, probabilities)
        return drawn.astype(bool)

    def whole_numbers(self, below: int, where: NDArray[Any]) -> NDArray[Any]:
        count = np.count_nonzero(where)
        return (
            np.random.randint(below, size=count) if self._generator is None else self._generator.integers(below, size=count)
        )


def _pad_inputs(collator: Any, rows: Sequence[Row], kind: str) -> Batch:
    """The rows as the collator's tokenizer pads them."""
    _check_kind(kind)
    options = {"max_length": collator.max_length, "pad_to_multiple_of": collator.pad_to_multiple_of}
    return collator.tokenizer.pad(list(rows), collator.padding, **options, return_tensors=kind)


def _split_labels(rows: Sequence[Row]) -> tuple[str, list[Any] | None, list[dict[str, Any]]]:
    """The name of the labels' column, the labels if there are any, and the rows without them."""
    name = "label" if "label" in rows[0] else "labels"
    labels = [row.get(name) for row in rows]
    others = [{other: value for other, value in row.items() if other != name} for row in rows]
    return name, None if all(label is None for label in labels) else labels, others


def _pad_rows(rows: Sequence[Any], width: int, fill: int | None, side: str, kind: str) -> Any:
    """Rows of whole numbers, filled up to one width."""
    padded = np.full((len(rows), width), fill, np.int64) if fill is not None else np.empty((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[slice(0, len(row)) if side == "right" else slice(width - len(row), None)] = np.asarray(row)
    return _as_array(padded, kind)


def _rounded_up(width: int, multiple: int | None) -> int:
    return -(-width // multiple) * multiple if multiple else width


def _stack(values: Sequence[Any], kind: str) -> Any:
    if kind == "pt" and isinstance(values[0], torch.Tensor):
        return torch.stack(list(values))
    if kind == "pt" and not isinstance(values[0], np.ndarray):
        return torch.tensor(values)
    return _as_array(np.stack([np.asarray(value) for value in values]), kind)


def _as_array(values: NDArray[Any], kind: str) -> Any:
    _check_kind(kind)
    return torch.from_numpy(values) if kind == "pt" else values


def _check_kind(kind: str) -> None:
    if kind not in ("pt", "np"):
        raise InputError(f"return_tensors={kind!r} is not known. Use 'pt' or 'np'.")
