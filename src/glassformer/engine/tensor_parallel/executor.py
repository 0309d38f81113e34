"""An executor over several ranks: each pass runs on all of them, and drivers use it like any other.

`TensorParallelExecutor` is rank 0's. Another rank's process (`run_rank`) loads its part of each model, and a
`FollowingExecutor` makes the calls there that rank 0 makes. Between them rows have ids, since objects stay in their process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

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
from glassformer.engine.tensor_parallel.process_group import ProcessGroup, join
from glassformer.engine.tensor_parallel.ranks import SAME_ON_ALL_RANKS, RankProcesses
from glassformer.ground.changes import Change, ComputedChange, as_array, in_sequence, parts_of
from glassformer.ground.errors import ExecutorError, GlassError, SiteError
from glassformer.ground.sites import Watch

Floats: TypeAlias = npt.NDArray[np.float32]


class LoadablePart(Protocol):
    """A model that every rank can load its part of; it is sent to the other ranks."""

    def load(self, group: ProcessGroup) -> Executor:
        """An executor over this rank's part."""


CALLS: Mapping[str, Callable[..., Any]] = {  # how each call is made on a rank, with its executor and its rows
    "open": lambda executor, rows, source: executor.open(source),
    "run": lambda executor, rows, feeds: executor.run(
        [replace(feed, row=row) for feed, row in zip(feeds, rows, strict=True)]
    ),
    "decode": lambda executor, rows, *choosing: executor.capabilities.sampler.decode(rows, *choosing),
    "fork": lambda executor, rows, length: executor.fork(rows[0], length),
    "select": lambda executor, rows, parents: executor.select(rows, parents),
    "rewind": lambda executor, rows, length: executor.rewind(rows[0], length),
    "close": lambda executor, rows: executor.close(rows[0]),
    "unembed": lambda executor, rows, states: executor.unembed(states),
}


@dataclass
class FollowingExecutor:
    """Another rank's executor, whose rows have ids. Its results are rank 0's too, and nobody asks for them."""

    executor: Executor
    rows: dict[int, Row] = field(default_factory=dict)

    def call(self, method: str, row_ids: Sequence[int], new_row: int | None, *arguments: Any) -> None:
        result = CALLS[method](self.executor, [self.rows[row_id] for row_id in row_ids], *arguments)
        if new_row is not None:
            self.rows[new_row] = result
        if method == "close":
            del self.rows[row_ids[0]]


def run_rank() -> None:
    """A process's main function: run a rank, with the arguments that `ranks` starts it with, until rank 0 ends."""
    handle, folder, rank, ranks, device, timeout, threads = sys.argv[1:]
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    logging.getLogger("glassformer").addHandler(logging.NullHandler())  # rank 0 says the same
    torch.set_num_threads(int(threads))
    connection = Connection(int(handle))
    try:
        follow(connection, join(Path(folder), int(rank), int(ranks), device, float(timeout)))
    except EOFError:
        os._exit(0)
    except BaseException as error:
        first_line = (str(error).splitlines() or [""])[0].rstrip(".")
        connection.send(first_line if isinstance(error, GlassError) else f"{type(error).__name__}: {first_line}")
        os._exit(1)  # whatever another thread waits for


def follow(connection: Connection, group: ProcessGroup) -> None:
    """Make the calls that arrive, until the connection ends."""
    models: dict[int, FollowingExecutor] = {}
    while True:
        model_id, method, *arguments = connection.recv()
        if method == "load":
            (part,) = arguments
            models[model_id] = FollowingExecutor(part.load(group))
            connection.send(None)
            continue
        with suppress(*SAME_ON_ALL_RANKS):  # about the call itself: rank 0 raises it too
            models[model_id].call(method, *arguments)


def _end_with_rank_0() -> None:
    """End when rank 0 does, also in the middle of a sum with it: it holds the other end of stdin."""
    sys.stdin.buffer.read()
    os._exit(0)


class TensorParallelExecutor:
    """An `Executor` over a model of which each rank has a part."""

    def __init__(self, ranks: RankProcesses, part: LoadablePart) -> None:
        """Load a model on all ranks."""
        self.ranks = ranks
        self._model = next(ranks.model_ids)
        self._executor = ranks.call((self._model, "load", part), lambda: part.load(ranks.group), answered=True)
        self._new_row_ids = count()
        self._rows: dict[int, tuple[Row, int]] = {}  # by identity; the row is kept, so that its identity is
        self.context = self._executor.context

    @property
    def capabilities(self) -> Capabilities:
        """As rank 0's, less what is not sent to the others."""
        inner = self._executor.capabilities
        sampler = None if inner.sampler is None else replace(inner.sampler, decode=self._decode, enqueue=None)
        return Capabilities(
            min_prefill_tokens=inner.min_prefill_tokens, sampler=sampler, same_frequencies=inner.same_frequencies
        )

    def open(self, source: Sequence[int] | None = None) -> Row:
        return self._new_row("open", (), source)

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        data = [feed if feed.watch is None else replace(feed, watch=_as_data(feed.watch)) for feed in feeds]
        messages = [replace(feed, row=None, ids=tuple(feed.ids)) for feed in data]  # type: ignore[arg-type]
        logits: Sequence[Logits] = self._call("run", [feed.row for feed in feeds], None, messages)
        return logits

    def _decode(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> Sequence[ChosenTokens]:
        chosen: Sequence[ChosenTokens] = self._call("decode", rows, None, tuple(tokens), tuple(choices), draws)
        return chosen

    def fork(self, row: Row, length: int | None = None) -> Row:
        return self._new_row("fork", [row], length)

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        self._call("select", rows, None, tuple(parents))

    def rewind(self, row: Row, length: int) -> int:
        return int(self._call("rewind", [row], None, length))

    def close(self, row: Row) -> None:
        self._call("close", [row], None)
        del self._rows[id(row)]

    def unembed(self, states: Floats) -> Floats:
        logits: Floats = self._call("unembed", (), None, states)
        return logits

    def describe(self) -> Description:
        """As rank 0's, with the memory that a token takes on a device: without GPUs, all ranks share one."""
        about = self.ranks.call_here(self._executor.describe)
        sharing = self.ranks.ranks if self.ranks.device == "cpu" else 1
        return replace(
            about,
            cache_bytes_per_token=about.cache_bytes_per_token * sharing,
            options={**about.options, "tensor_parallel": str(self.ranks.ranks)},
        )

    def _call(self, method: str, rows: Sequence[Row], new_row: int | None, *arguments: Any) -> Any:
        """Make a call on all ranks; `new_row`: the id of the row that it gives."""
        message = (self._model, method, [self._row_id(row) for row in rows], new_row, *arguments)
        return self.ranks.call(message, lambda: CALLS[method](self._executor, rows, *arguments))

    def _new_row(self, method: str, rows: Sequence[Row], *arguments: Any) -> Row:
        row_id = next(self._new_row_ids)
        row: Row = self._call(method, rows, row_id, *arguments)
        self._rows[id(row)] = row, row_id
        return row

    def _row_id(self, row: Row) -> int:
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
