"""Tasks that need one forward pass per row: texts are encoded, run in batches of similar length, and answered one by one.

Padding costs as much as text, so rows are sorted by length and a batch has as many rows as keep the machine busy. Shapes:
ids (rows, length); a head's output is cut back to each row's own length.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import GlassError, InputError
from glassformer.tasks.task import Task, TaskOptions
from glassformer.text import BatchEncoding

TOKENS_PER_CORE, TOKENS_ON_GPU = 128, 16384  # in one pass; more would not stay in a core's caches
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class EncodedRow:
    """One encoded text, or one window of a long one."""

    owner: int  # the index of the input that it belongs to
    columns: Mapping[str, list[Any]]  # ids, types, offsets, …, all of the same length

    def __len__(self) -> int:
        return len(self.columns["input_ids"])

    def positions(self, token_id: int) -> list[int]:
        """Where an id occurs."""
        return [position for position, index in enumerate(self.columns["input_ids"]) if index == token_id]


@dataclass(frozen=True)
class TruncationOptions(TaskOptions):
    """For tasks that read a text in one row, not in windows."""

    POSITIVE: ClassVar = (*TaskOptions.POSITIVE, "max_length")

    truncation: bool = False  # cut a text that is too long
    max_length: int | None = None  # cut it to this length in tokens; by default to what the model reads
    padding: bool | str = True  # accepted for familiarity: a batch is always padded to its longest text


class ForwardTask(Task):
    """A task over a model that gives scores or states, and generates nothing."""

    options_type = TaskOptions

    @property
    def limit(self) -> int:
        """How many tokens the model can read at once."""
        context: int = self.model.config.source_context
        return min(self.tokenizer.model_max_length, context)

    def answer(self, items: Sequence[Any], options: Any) -> Iterable[Any]:
        rows, errors = self._fitting_rows(self.preprocess(items, options))
        outputs = self.run_rows(rows, options)
        rows_of_item: list[list[int]] = [[] for _ in items]
        for index, row in enumerate(rows):
            rows_of_item[row.owner].append(index)
        for index, item in enumerate(items):
            if index in errors:
                yield errors[index]
                continue
            chosen = rows_of_item[index]
            try:
                yield self.postprocess(item, [rows[row] for row in chosen], [outputs[row] for row in chosen], options)
            except GlassError as error:
                yield error

    def preprocess(self, items: Sequence[Any], options: Any) -> list[EncodedRow]:
        """The rows that the model is to read; an input may have several."""
        return encode_texts(self, items, options)

    @abstractmethod
    def split_output(self, output: Any, rows: Sequence[EncodedRow]) -> list[Any]:
        """A batch's output as numpy arrays, one for each row."""

    @abstractmethod
    def postprocess(self, item: Any, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: Any) -> Any:
        """The answer to one input, from the outputs of its rows."""

    def forward(self, **inputs: Any) -> Any:
        """One pass of the model."""
        return self.model.module(**inputs)

    def _fitting_rows(self, rows: Sequence[EncodedRow]) -> tuple[list[EncodedRow], dict[int, InputError]]:
        """The rows that the model can read, and an error for each input that is too long."""
        errors = {
            row.owner: InputError(
                f"the text has {len(row)} tokens, and {self.model.name} reads at most {self.limit}. "
                "Shorten it, or let it be cut with truncation=True."
            )
            for row in rows
            if len(row) > self.limit
        }
        return [row for row in rows if row.owner not in errors], errors

    def run_rows(self, rows: Sequence[EncodedRow], options: Any) -> list[Any]:
        """Each row's output; the longest go first, so that a job that does not fit into memory fails at once."""
        outputs: list[Any] = [None] * len(rows)
        device = self.model.module.device
        import torch

        with torch.inference_mode():
            max_tokens = TOKENS_PER_CORE * torch.get_num_threads() if device.type == "cpu" else TOKENS_ON_GPU
            for indices in batches([len(row) for row in rows], options.batch_size, self._pad_id is not None, max_tokens):
                batch = [rows[index] for index in indices]
                inputs = {name: torch.from_numpy(array).to(device) for name, array in self._pad(batch).items()}
                for index, output in zip(indices, self.split_output(self.forward(**inputs), batch), strict=True):
                    outputs[index] = output
        return outputs

    @property
    def _pad_id(self) -> int | None:
        pad_id: int | None = self.tokenizer.pad_token_id
        return pad_id

    def _pad(self, rows: Sequence[EncodedRow]) -> dict[str, npt.NDArray[np.int64]]:
        """The model's inputs, padded to one length."""
        longest = max(len(row) for row in rows)
        names = [name for name in INPUTS if name in rows[0].columns]
        inputs = {name: np.zeros((len(rows), longest), np.int64) for name in names}
        inputs["input_ids"].fill(self._pad_id or 0)
        for index, row in enumerate(rows):
            for name in names:
                inputs[name][index, : len(row)] = row.columns[name]
        return inputs


def batches(lengths: Sequence[int], batch_size: int | None, padded: bool, max_tokens: int) -> Iterator[list[int]]:
    """The indices of rows that run together: the longest first, rows of similar length side by side.

    A batch has `batch_size` rows, or else as many as make up `max_tokens`; without padding, only rows of one length can
    share one.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batch: list[int] = []
    for row in order:
        full = batch and (
            len(batch) == batch_size
            or (batch_size is None and lengths[batch[0]] * (len(batch) + 1) > max_tokens)
            or (not padded and lengths[row] != lengths[batch[0]])
        )
        if full:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def encode_texts(
    task: ForwardTask, items: Sequence[str | tuple[str, str | None]], options: TruncationOptions
) -> list[EncodedRow]:
    """Rows of texts, each alone or with a second one, truncated if the options say so."""
    texts: Any = [item if isinstance(item, str) or item[1] is not None else item[0] for item in items]
    if not options.truncation and options.max_length is None:
        return input_rows(task.tokenizer(texts))
    return input_rows(task.tokenizer(texts, truncation=True, max_length=min(task.limit, options.max_length or task.limit)))


def input_rows(encoding: BatchEncoding) -> list[EncodedRow]:
    """A tokenizer's batch as rows."""
    count = len(encoding["input_ids"])
    owners = encoding.get("overflow_to_sample_mapping", range(count))
    columns = {name: values for name, values in encoding.items() if name != "overflow_to_sample_mapping"}
    return [EncodedRow(int(owners[row]), {name: values[row] for name, values in columns.items()}) for row in range(count)]


def unpad(values: Any, rows: Sequence[EncodedRow]) -> list[npt.NDArray[np.float32]]:
    """A batch's (rows, length, …) as one float32 array per row, without the padding."""
    padded = values.float().cpu().numpy()
    return [padded[index, : len(row)] for index, row in enumerate(rows)]


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), np.float32)
