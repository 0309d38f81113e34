"""Tasks whose model only reads: texts are encoded, run in batches of like length, and answered one by one.

Padding costs as much as text, so rows are sorted by length and a batch is as many rows as make a good load. Shapes:
ids (rows, length); what a head gives is cut back to each row's own length.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.errors import GlassError, InputError
from glassformer.tasks.task import Options, Task, check_positive
from glassformer.text import BatchEncoding

CORE, DEVICE = 128, 16384  # tokens in one pass, for each core (more would not stay in its caches) or on a GPU
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Row:
    """One encoded text, or one window of a long one."""

    owner: int  # the number of the input that it belongs to
    columns: Mapping[str, list[Any]]  # ids, types, offsets, …, all of one length

    def __len__(self) -> int:
        return len(self.columns["input_ids"])

    def places(self, value: int) -> list[int]:
        """Where an id stands."""
        return [at for at, number in enumerate(self.columns["input_ids"]) if number == value]


@dataclass(frozen=True)
class CutOptions(Options):
    """For tasks that take a text whole or not at all."""

    truncation: bool = False  # cut a text that is too long
    max_length: int | None = None  # cut it to so many tokens; by default to what the model reads
    padding: bool | str = True  # accepted for familiarity: a batch is always filled up to its longest text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_length")


class Reading(Task):
    """A task over a model that gives scores or states, and writes nothing."""

    Options = Options

    @property
    def limit(self) -> int:
        """The tokens that the model can read at once."""
        context: int = self.model.config.context
        return min(self.tokenizer.model_max_length, context)

    def answer(self, items: Sequence[Any], options: Any) -> Iterable[Any]:
        rows, wrong = self._fitting(self.rows(items, options))
        found = self.run(rows, options)
        mine: list[list[int]] = [[] for _ in items]
        for number, row in enumerate(rows):
            mine[row.owner].append(number)
        for number, item in enumerate(items):
            if number in wrong:
                yield wrong[number]
                continue
            try:
                yield self.conclude(item, [rows[at] for at in mine[number]], [found[at] for at in mine[number]], options)
            except GlassError as error:
                yield error

    @abstractmethod
    def rows(self, items: Sequence[Any], options: Any) -> list[Row]:
        """The rows that the model is to read; an input may have several."""

    @abstractmethod
    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        """Of a batch's output, what each row needs, as numpy arrays."""

    @abstractmethod
    def conclude(self, item: Any, rows: Sequence[Row], found: Sequence[Any], options: Any) -> Any:
        """The answer to one input, out of what its rows gave."""

    def forward(self, **inputs: Any) -> Any:
        """One pass of the model."""
        return self.model.module(**inputs)

    def _fitting(self, rows: Sequence[Row]) -> tuple[list[Row], dict[int, InputError]]:
        """The rows that the model can read, and an error for each input that is too long."""
        wrong = {
            row.owner: InputError(
                f"the text has {len(row)} tokens, and {self.model.name} reads at most {self.limit}. "
                "Shorten it, or let it be cut with truncation=True."
            )
            for row in rows
            if len(row) > self.limit
        }
        return [row for row in rows if row.owner not in wrong], wrong

    def run(self, rows: Sequence[Row], options: Any) -> list[Any]:
        """What each row gives; the longest go first, so that a job that does not fit into memory says so at once."""
        import torch

        found: list[Any] = [None] * len(rows)
        device = self.model.module.device
        with torch.inference_mode():
            load = CORE * torch.get_num_threads() if device.type == "cpu" else DEVICE
            for numbers in batches([len(row) for row in rows], options.batch_size, self._padding is not None, load):
                batch = [rows[at] for at in numbers]
                filled = {name: torch.from_numpy(one).to(device) for name, one in self._filled(batch).items()}
                output = self.forward(**filled)
                for at, one in zip(numbers, self.take(output, batch), strict=True):
                    found[at] = one
        return found

    @property
    def _padding(self) -> int | None:
        number: int | None = self.tokenizer.pad_token_id
        return number

    def _filled(self, rows: Sequence[Row]) -> dict[str, npt.NDArray[np.int64]]:
        """The model's inputs, filled up to one length."""
        longest = max(len(row) for row in rows)
        names = [name for name in INPUTS if name in rows[0].columns]
        inputs = {name: np.zeros((len(rows), longest), np.int64) for name in names}
        inputs["input_ids"].fill(self._padding or 0)
        for at, row in enumerate(rows):
            for name in names:
                inputs[name][at, : len(row)] = row.columns[name]
        return inputs


def batches(lengths: Sequence[int], most: int | None, padded: bool, load: int) -> Iterator[list[int]]:
    """The numbers of rows that run together: the longest first, with little between the longest and the shortest.

    A batch has `most` rows, or else as many as make up a `load` of tokens; without padding, only rows of one length
    can share one.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    batch: list[int] = []
    for at in order:
        full = batch and (
            len(batch) == most
            or (most is None and lengths[batch[0]] * (len(batch) + 1) > load)
            or (not padded and lengths[at] != lengths[batch[0]])
        )
        if full:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def encode_pairs(task: Reading, items: Sequence[tuple[str, str | None]], options: CutOptions) -> list[Row]:
    """Texts of which some have a second one, cut if that is wished for."""
    given: Any = [first if second is None else (first, second) for first, second in items]
    if not options.truncation and options.max_length is None:
        return rows_of(task.tokenizer(given))
    return rows_of(task.tokenizer(given, truncation=True, max_length=min(task.limit, options.max_length or task.limit)))


def rows_of(encoded: BatchEncoding) -> list[Row]:
    """A tokenizer's batch as rows."""
    count = len(encoded["input_ids"])
    owners = encoded.get("overflow_to_sample_mapping", range(count))
    columns = {name: values for name, values in encoded.items() if name != "overflow_to_sample_mapping"}
    return [Row(int(owners[at]), {name: values[at] for name, values in columns.items()}) for at in range(count)]


def cut(values: Any, rows: Sequence[Row]) -> list[npt.NDArray[np.float32]]:
    """A batch's (rows, length, …) as one float32 array per row, without the padding."""
    whole = values.float().cpu().numpy()
    return [whole[at, : len(row)] for at, row in enumerate(rows)]


def softmax(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), np.float32)
