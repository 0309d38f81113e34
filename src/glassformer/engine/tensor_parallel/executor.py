"""An executor over several ranks: each pass runs on all of them, and drivers use it like any other.

`TensorParallelExecutor` is rank 0's; `FollowingExecutor` makes the same calls on another rank. Between them rows have
numbers, since objects stay in their process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.engine import checks
from glassformer.engine.protocol import (
    Capabilities,
    Choice,
    ChosenTokens,
    Description,
    Draws,
    Executor,
    Feed,
    Logits,
    Row,
)  # fmt: skip
from glassformer.engine.tensor_parallel.process_group import ProcessGroup
from glassformer.engine.tensor_parallel.ranks import RankProcesses
from glassformer.ground.changes import Change, ComputedChange, as_array, in_sequence, parts_of
from glassformer.ground.errors import ExecutorError, SiteError
from glassformer.ground.sites import Watch

Result = TypeVar("Result")
Floats: TypeAlias = npt.NDArray[np.float32]


class LoadablePart(Protocol):
    """A model that every rank can load its part of; it is sent to the other ranks."""

    def load(self, group: ProcessGroup) -> Executor:
        """An executor over this rank's part."""


@dataclass
class FollowingExecutor:
    """Another rank's executor, whose rows have numbers. Its results are rank 0's too, and nobody asks for them."""

    executor: Executor
    rows: dict[int, Row] = field(default_factory=dict)

    def open(self, number: int, source: Sequence[int] | None) -> None:
        self.rows[number] = self.executor.open(source)

    def run(self, feeds: Sequence[Feed], numbers: Sequence[int]) -> None:
        self.executor.run([replace(feed, row=self.rows[number]) for feed, number in zip(feeds, numbers, strict=True)])

    def decode(self, numbers: Sequence[int], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws) -> None:
        sampler = self.executor.capabilities.sampler
        assert sampler is not None
        sampler.decode([self.rows[number] for number in numbers], tokens, choices, draws)

    def fork(self, number: int, parent: int, length: int | None) -> None:
        self.rows[number] = self.executor.fork(self.rows[parent], length)

    def select(self, numbers: Sequence[int], parents: Sequence[int]) -> None:
        self.executor.select([self.rows[number] for number in numbers], parents)

    def rewind(self, number: int, length: int) -> None:
        self.executor.rewind(self.rows[number], length)

    def close(self, number: int) -> None:
        self.executor.close(self.rows.pop(number))

    def unembed(self, states: Floats) -> None:
        self.executor.unembed(states)


class TensorParallelExecutor:
    """An `Executor` over a model of which each rank has a part."""

    def __init__(self, ranks: RankProcesses, part: LoadablePart) -> None:
        """Load a model on all ranks."""
        self.ranks = ranks
        self._model = next(ranks.model_numbers)
        self._executor = ranks.call((self._model, "load", part), lambda: part.load(ranks.group), answered=True)
        self._new_numbers = count()
        self._rows: dict[int, tuple[Row, int]] = {}  # by identity; the row is kept, so that its identity is
        self.context = self._executor.context

    @property
    def capabilities(self) -> Capabilities:
        """As rank 0's, less what is not sent to the others."""
        own = self._executor.capabilities
        sampler = None if own.sampler is None else replace(own.sampler, decode=self._decode, enqueue=None)
        return Capabilities(
            min_prefill_tokens=own.min_prefill_tokens, sampler=sampler, same_frequencies=own.same_frequencies
        )

    def open(self, source: Sequence[int] | None = None) -> Row:
        number = next(self._new_numbers)
        return self._remember(self._call(lambda: self._executor.open(source), "open", number, source), number)

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        feeds = [feed if feed.watch is None else replace(feed, watch=_as_data(feed.watch)) for feed in feeds]
        rows = [self._number(feed.row) for feed in feeds]
        messages = [replace(feed, row=None, ids=tuple(feed.ids)) for feed in feeds]  # type: ignore[arg-type]
        return self._call(lambda: self._executor.run(feeds), "run", messages, rows)

    def _decode(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> Sequence[ChosenTokens]:
        sampler = self._executor.capabilities.sampler
        assert sampler is not None
        own = lambda: sampler.decode(rows, tokens, choices, draws)  # noqa: E731
        return self._call(own, "decode", [self._number(row) for row in rows], tuple(tokens), tuple(choices), draws)

    def fork(self, row: Row, length: int | None = None) -> Row:
        number, parent = next(self._new_numbers), self._number(row)
        return self._remember(self._call(lambda: self._executor.fork(row, length), "fork", number, parent, length), number)

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        numbers = [self._number(row) for row in rows]
        self._call(lambda: self._executor.select(rows, parents), "select", numbers, tuple(parents))

    def rewind(self, row: Row, length: int) -> int:
        return self._call(lambda: self._executor.rewind(row, length), "rewind", self._number(row), length)

    def close(self, row: Row) -> None:
        self._call(lambda: self._executor.close(row), "close", self._number(row))
        del self._rows[id(row)]

    def unembed(self, states: Floats) -> Floats:
        return self._call(lambda: self._executor.unembed(states), "unembed", states)

    def describe(self) -> Description:
        """As rank 0's, with the memory that a token takes on a device: without GPUs, all ranks share one."""
        about = self.ranks.call_here(self._executor.describe)
        sharing = self.ranks.ranks if self.ranks.device == "cpu" else 1
        return replace(
            about,
            cache_bytes_per_token=about.cache_bytes_per_token * sharing,
            options={**about.options, "tensor_parallel": str(self.ranks.ranks)},
        )

    def _call(self, own: Callable[[], Result], method: str, *arguments: Any) -> Result:
        return self.ranks.call((self._model, method, *arguments), own)

    def _remember(self, row: Row, number: int) -> Row:
        self._rows[id(row)] = row, number
        return row

    def _number(self, row: Row) -> int:
        if id(row) not in self._rows:
            raise ExecutorError(checks.ROW_NOT_OPEN)
        return self._rows[id(row)][1]


def _as_data(watch: Watch) -> Watch:
    """A watch whose changes can be sent: without tensors, for rank 0 too."""
    return replace(watch, changes={site: _without_tensors(site, change) for site, change in watch.changes.items()})


def _without_tensors(site: str, change: Change) -> Change:
    return in_sequence(*(_part_without_tensors(site, part) for part in parts_of(change)))


def _part_without_tensors(site: str, change: Change) -> Change:
    if isinstance(change, ComputedChange):
        raise SiteError(f"a function cannot be sent to the other processes of a split model. Give {site} a Change.")
    arrays = {name: getattr(change, name) for name in ("scale", "shift", "onto", "away_from")}
    return replace(change, **{name: as_array(value) for name, value in arrays.items() if hasattr(value, "detach")})
