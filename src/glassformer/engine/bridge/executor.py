"""The bridge's executor: the modules of transformers over rows, one row in each pass.

A row keeps what it was fed. It goes on from the model's own cache where that was found to give what reading at once gives
(`anatomy.py`); where it does not, and after a rewind of what a cache cannot forget, the row is read again from its first
token. Every row runs alone, so what it gets never depends on what runs beside it.

Shapes: ids (1, length); logits (scored positions, vocabulary).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.blueprints.bridged import LIBRARY
from glassformer.engine import checks
from glassformer.engine.bridge.model import BridgedModel, check_changes
from glassformer.engine.plain.executor import HostCopy, PlainLogits
from glassformer.engine.protocol import Capabilities, Description, Feed, Row, Want
from glassformer.engine.row_history import ReadTokens
from glassformer.ground.errors import ExecutorError
from glassformer.ground.ownership import NotCopied
from glassformer.ground.sites import ENCODER, Observer, Tap, Watch, where_of
from glassformer.torch.module_sites import as_tokens, first_tensor, from_tokens, with_first_tensor

NOTHING = Watch()
UNEMBEDDED = 256  # states that are read out at once


@dataclass(frozen=True)
class State:
    """What a model keeps of a row's first tokens."""

    cache: Any
    length: int


@dataclass(eq=False)
class BridgeRow:
    source: tuple[int, ...] = ()
    length: int = 0
    open: bool = True
    parts: list[ReadTokens] = field(default_factory=list)  # all that it was fed, and under which changes
    state: State | None = None
    encoded: Any = None  # an encoder's output
    encoded_under: Mapping[str, Any] = field(default_factory=dict)  # the changes that it was encoded under


class BridgeExecutor(NotCopied):
    """An `Executor` over a model that transformers computes."""

    def __init__(self, model: BridgedModel) -> None:
        self.model = model
        self.context: int = model.config.context
        self._lock = model.lock
        self._checks = checks.InputChecks(
            self.context, model.config.vocab_size, model.blueprint.site_names,
            Capabilities(calls_modules=True, resumes_at=self._resumes_at),
        )  # fmt: skip

    @property
    def capabilities(self) -> Capabilities:
        return self._checks.capabilities

    @checks.locked
    def open(self, source: Sequence[int] | None = None) -> BridgeRow:
        return BridgeRow(self._checks.source(source))

    @checks.locked
    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[PlainLogits]:
        rows = [self._open_row(feed.row) for feed in feeds]
        feeds = [self._checks.feed(feed, row.length) for feed, row in zip(feeds, rows, strict=True)]
        checks.check_fed_once(rows)
        for feed in feeds:
            check_changes(feed.watch or NOTHING)
        logits = []
        try:
            for feed, row in zip(feeds, rows, strict=True):
                logits.append(self._run_tree(feed, row) if feed.parents is not None else self._run_row(feed, row))
        except BaseException:
            for row in rows:
                row.state = None  # it may hold a part of a pass
            raise
        for feed, row in zip(feeds, rows, strict=True):
            row.parts.append(ReadTokens.of(feed, row.length))
            row.length += len(feed.ids)
        return logits

    def _open_row(self, row: Row) -> BridgeRow:
        return checks.open_row(row, BridgeRow)

    def _resumes_at(self, row: Row, length: int) -> int:
        """A cache that cannot be read on by chunks is of no use to a prompt, which is read anew."""
        return length if self.model.anatomy.continues == "by chunks" else 0

    # One row ----------------------------------------------------------------------------------------------------

    def _run_row(self, feed: Feed, row: BridgeRow) -> PlainLogits:
        """The logits of what a row is fed; its state is that of all its tokens then."""
        watch = feed.watch or NOTHING
        record: dict[str, Any] = {}
        encoded = self._encoded(row, watch, record)
        start, end = row.length, row.length + len(feed.ids)
        state = self._state_before(row, len(feed.ids))
        first = 0 if state is None else state.length
        parts = [*row.parts, ReadTokens.of(feed, start)]
        ids = [token for part in parts for token in part.ids]
        keep = len(feed.ids) if feed.want is Want.ALL else 1
        tap = self._tap(parts, watch, first, start, record)
        continues = self.model.anatomy.continues
        with self.model.watched(tap, end - first):
            output = self.model.call(
                ids[first:], encoded=encoded, cache=None if state is None else state.cache,
                use_cache=continues != "never", keep=None if tap is not None else keep,
            )  # fmt: skip
        row.state = State(output.cache, end) if continues != "never" and output.cache is not None else None
        self._read_patterns(row, watch, parts, start, record)
        assert output.logits is not None
        count = len(checks.scored_columns(feed))
        return self._logits(watch, output.logits[len(output.logits) - count :], end - count, record)

    def _state_before(self, row: BridgeRow, count: int) -> State | None:
        """The state that `count` new tokens go on from; None: the row is read from its first token."""
        if any(part.parents is not None for part in row.parts):
            raise ExecutorError("a row cannot go on after a tree of guesses. Rewind it to before them.")
        state, continues = row.state, self.model.anatomy.continues
        if state is None or not row.length:
            return None
        if state.length > row.length:
            state = _cropped(state, row.length)
        fits = state is not None and state.length == row.length and (count == 1 or continues == "by chunks")
        return state if fits else None

    def _tap(self, parts: Sequence[ReadTokens], watch: Watch, first: int, start: int, record: dict[str, Any]) -> Tap | None:
        """What observes a pass from position `first` on: each part under its own changes, the last one's sites read."""
        observers = []
        for part in parts:
            if part.start < first:
                continue
            is_last = part.start == start
            reads = watch.reads - {"scores"} - {site for site in watch.reads if site.endswith(".pattern")} if is_last else ()
            reads = frozenset(site for site in reads if not site.startswith(ENCODER))
            changes = {s: c for s, c in part.changes.items() if s != "scores" and not s.startswith(ENCODER)}
            if reads or changes:
                observers.append(
                    Observer(
                        Watch(reads, changes), 0, part.start, len(part.ids), offset=part.start - first,
                        record=record if is_last else {},
                    )
                )  # fmt: skip
        return Tap(observers) if observers else None

    def _read_patterns(
        self, row: BridgeRow, watch: Watch, parts: Sequence[ReadTokens], start: int, record: dict[str, Any]
    ) -> None:
        """Patterns, in a pass of its own over the whole text, with the attention that gives them."""
        found = self.model.anatomy.patterns
        wanted = [site for site in watch.reads if site in found and found[site][0] != "encoder"]
        if not wanted:
            return
        ids = [token for part in parts for token in part.ids]
        tap = self._tap(parts, Watch(changes=watch.changes), 0, start, {})
        with self.model.watched(tap, len(ids)):
            output = self.model.call(ids, encoded=row.encoded, patterns=True)
        for site in wanted:
            kind, index = found[site]
            pattern = output.patterns[kind][index]
            assert pattern is not None
            record[site] = pattern[:, :, start:]

    def _encoded(self, row: BridgeRow, watch: Watch, record: dict[str, Any]) -> Any:
        """An encoder's output for a row's source, encoded at its first pass; the sites that are read there."""
        if not self.model.is_pair:
            return None
        changes = {site: change for site, change in watch.changes.items() if site.startswith(ENCODER)}
        found = self.model.anatomy.patterns
        reads = frozenset(site for site in watch.reads if site.startswith(ENCODER))
        patterns = [site for site in reads if site in found]
        reads -= set(patterns)
        if row.encoded is not None and (row.length or not (reads or changes or patterns)):
            return row.encoded
        observer = Observer(Watch(reads, changes), 0, source=len(row.source), record=record)
        tap = Tap([observer]) if reads or changes else None
        with self.model.watched(tap, len(row.source), ENCODER):
            row.encoded = self.model.encode(row.source)
        row.encoded_under = changes
        if patterns:
            again = Tap([Observer(Watch(changes=changes), 0, source=len(row.source))]) if changes else None
            with self.model.watched(again, len(row.source), ENCODER):
                given = self.model.encode(row.source, patterns=True).attentions
            record.update({site: given[found[site][1]] for site in patterns})
        return row.encoded

    def _logits(self, watch: Watch, logits: Tensor, start: int, record: dict[str, Any]) -> PlainLogits:
        """The logits, changed and recorded if the watch asks for the site `scores`; `start`: the first one's position."""
        if (change := watch.changes.get("scores")) is not None and len(logits):
            logits = change.apply(logits[None], where_of("scores", start))[0]
        if "scores" in watch.reads:
            record["scores"] = logits[None]
        return PlainLogits(HostCopy(logits), range(len(logits)), record)

    def _run_tree(self, feed: Feed, row: BridgeRow) -> PlainLogits:
        """A tree of guesses: each path from its root to a leaf is a text of its own."""
        assert feed.parents is not None
        if feed.watch is not None and any("keys" in where_of(site, 0).axes for site in feed.watch.reads):
            raise ExecutorError("a tree of guesses has no patterns to read: its tokens see their own ancestors alone.")
        paths: list[list[int]] = []
        for index, parent in enumerate(feed.parents):
            paths.append([*([] if parent < 0 else paths[parent]), index])
        leaves = [path for path in paths if path[-1] not in feed.parents]
        vectors: dict[int, Tensor] = {}
        sites: dict[str, dict[int, Any]] = {}
        for path in leaves:
            fork = self._fork(row, row.length)
            part = replace(feed, row=fork, ids=[feed.ids[index] for index in path], parents=None, want=Want.ALL)
            result = self._run_row(part, fork)
            for place, index in enumerate(path):
                vectors.setdefault(index, torch.from_numpy(result.host(place)))
            for site, value in result.sites.items():
                axes = where_of(site, 0).axes
                for place, index in enumerate(path):
                    taken = value.narrow(axes.index("length"), place, 1) if "length" in axes else value
                    sites.setdefault(site, {}).setdefault(index, taken)
        record = {
            site: torch.cat([values[n] for n in range(len(feed.ids))], where_of(site, 0).axes.index("length"))
            if "length" in where_of(site, 0).axes
            else values[0]
            for site, values in sites.items()
        }
        columns = checks.scored_columns(feed)
        logits = torch.stack([vectors[index] for index in columns]) if columns else torch.empty(0)
        return PlainLogits(HostCopy(logits), range(len(columns)), record)

    # Rows -------------------------------------------------------------------------------------------------------

    def _fork(self, row: BridgeRow, length: int) -> BridgeRow:
        state = row.state if row.state is None or row.state.length <= length else _cropped(deepcopy(row.state), length)
        if state is row.state:
            state = deepcopy(state)
        parts = [part.first(length) for part in row.parts if part.start < length]
        return BridgeRow(row.source, length, True, parts, state, row.encoded, row.encoded_under)

    @checks.locked
    @torch.inference_mode()
    def fork(self, row: Row, length: int | None = None) -> BridgeRow:
        parent = self._open_row(row)
        return self._fork(parent, parent.length if length is None else max(0, min(length, parent.length)))

    @checks.locked
    @torch.inference_mode()
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        targets = [self._open_row(row) for row in rows]
        chosen = [self._fork(targets[parent], targets[parent].length) for parent in parents]
        for row, fork in zip(targets, chosen, strict=True):
            vars(row).update(vars(fork))

    @checks.locked
    @torch.inference_mode()
    def rewind(self, row: Row, length: int) -> int:
        kept = self._open_row(row)
        kept.length = max(0, min(kept.length, length))
        kept.parts = [part.first(kept.length) for part in kept.parts if part.start < kept.length]
        if kept.state is not None and kept.state.length > kept.length:
            kept.state = _cropped(kept.state, kept.length)
        return kept.length

    @checks.locked
    def close(self, row: Row) -> None:
        closed = self._open_row(row)
        closed.open, closed.state, closed.encoded = False, None, None

    # All else ---------------------------------------------------------------------------------------------------

    @checks.locked
    @torch.inference_mode()
    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """In the model's own last part: in a pass over any tokens, these states stand in for what leaves the last block."""
        states = checks.residual_states(states, self.model.config.hidden_size)
        if not self._reads_states_one_by_one:
            raise ExecutorError(
                f"what comes after the last block of this {self.model.config.model_type} model needs more than one token's "
                "state, so that states have no logits of their own."
            )
        size = min(UNEMBEDDED, self.context)
        if not len(states):
            return np.zeros((0, self.model.config.vocab_size), np.float32)
        chunks = [self._unembedded(torch.from_numpy(states[n : n + size])) for n in range(0, len(states), size)]
        logits: npt.NDArray[np.float32] = torch.cat(chunks).float().cpu().numpy()
        return logits

    def _unembedded(self, states: Tensor) -> Tensor:
        site = f"blocks.{self.model.anatomy.blocks - 1}.residual"
        place = self.model.anatomy.places.get(site)
        if place is None or place.layout is None:
            raise ExecutorError(
                f"this {self.model.config.model_type} model's stream was seen to go through no blocks, so no layer has "
                "states to read out. Its sites: glass look --sites."
            )
        layout, count = place.layout, len(states)

        def put(module: Any, inputs: Any, output: Any) -> Any:
            value = first_tensor(output)
            assert value is not None
            tokens = as_tokens(value, layout, 1, count)
            return with_first_tensor(output, from_tokens(states[None].to(tokens), value, layout))

        handle = self.model.module.get_submodule(place.module).register_forward_hook(put)
        try:
            logits = self.model.call([0] * count, encoded=self._any_source).logits
        finally:
            handle.remove()
        assert logits is not None
        return logits

    @cached_property
    def _any_source(self) -> Any:
        return self.model.encode([0]) if self.model.is_pair else None

    @cached_property
    def _reads_states_one_by_one(self) -> bool:
        """Whether the logits after a state depend on that state alone."""
        states = torch.randn(3, self.model.config.hidden_size, generator=torch.Generator().manual_seed(1))
        forwards, backwards = self._unembedded(states), self._unembedded(states.flip(0)).flip(0)
        return bool(torch.allclose(forwards.float(), backwards.float(), rtol=1e-2, atol=1e-3))

    def describe(self) -> Description:
        dtype = str(self.model.dtype).removeprefix("torch.")
        how = {
            "never": "reads a text anew for each token",
            "by tokens": "keeps a state, and reads a text anew where it is rewound",
            "by chunks": "",
        }[self.model.anatomy.continues]
        notes = (f"{LIBRARY} {version(LIBRARY)}", *([how] if how else []))
        return Description(LIBRARY, str(self.model.device), dtype, torch.get_num_threads(), notes=notes)


def _cropped(state: State, length: int) -> State | None:
    """A state of a text's first tokens; None where it cannot be cut."""
    if not length:
        return None
    caches = [getattr(state.cache, "self_attention_cache", state.cache)]
    layers = getattr(caches[0], "layers", None)
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return None
    caches[0].crop(length - state.length)  # by a negative number: so many of the last
    return State(state.cache, length)
