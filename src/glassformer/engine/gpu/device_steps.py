"""Tokens that the GPU engine chooses by itself, step after step, so that none of them waits for the host.

A step is a captured pass: it finds its rows' next tokens, and makes them those of the next step. A single row may have the
persistent kernel instead (`single_row.py`). Steps are queued, and their results copied to the host behind them, so
that the next ones can be queued before anybody has waited for these.

Shapes: chosen ids (steps, rows); rules and records as in kernels/choosing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.engine.gpu.graphs import SIZES, CapturedPass, CapturedShape, padded_size
from glassformer.engine.gpu.kernels.choosing import (
    FEW,
    MANY,
    MOST_SHOWN,
    RULES,
    ChoiceMode,
    read_records,
    record_size,
)  # fmt: skip
from glassformer.engine.gpu.kv_pool import GpuRow
from glassformer.engine.gpu.passes import HostCopies, PassInput, to_device
from glassformer.engine.gpu.steps import DeviceProgram
from glassformer.engine.program import Program, SiteLocation
from glassformer.engine.program_pass import FeedChunk
from glassformer.engine.protocol import BEST, NOT_CHOSEN, Choice, ChoiceRecords, ChosenTokens, Draws, Feed
from glassformer.ground.sites import ENCODER, axes

MAX_STEPS = 64  # that are queued at once
SHOWN = (16, MOST_SHOWN)  # candidates that are recorded, some more than asked for: dividing scores may make them equal
SPARE = 6
TEMPERATURES = (1e-30, 1e30)  # between which float32 can divide by one
TOKEN_AXES = frozenset(("batch", "length", "hidden", "inner", "heads", "head_size"))


# What a choice needs ----------------------------------------------------------------------------------------------------


def knows(choice: Choice) -> bool:
    """Whether tokens can be chosen so on the device."""
    low, high = TEMPERATURES
    return (
        choice.top_k <= MANY
        and choice.candidates + SPARE <= MOST_SHOWN
        and low < choice.temperature < high
        and all(TOKEN_AXES.issuperset(axes(site)) and not site.startswith(ENCODER) for site in choice.sites)
    )


def mode_of(choices: Sequence[Choice]) -> ChoiceMode | None:
    """The kernels that choose so; None: those for the best tokens alone, of which nothing is recorded."""
    asked = max(choice.candidates for choice in choices)
    sampled = [choice for choice in choices if choice.sampled]
    if not sampled and not asked:
        return None
    unlimited = [choice for choice in sampled if choice.top_k == 0]
    return ChoiceMode(
        shown=next(size for size in SHOWN if size >= asked + SPARE) if asked else 0,
        long=bool(unlimited) or any(choice.top_k > FEW for choice in sampled),
        sums=bool(unlimited) or asked > 0,
        whole=any(choice.top_p == 1 for choice in unlimited),
    )


def rule_numbers(choices: Sequence[Choice], draws: Draws) -> Draws:
    """The rules and draws of each row, as the kernels read them."""
    rules = [
        (
            choice.temperature, choice.top_k, choice.top_p, math.log(choice.min_p) if choice.min_p > 0 else -math.inf,
            choice.sampled,
        )
        for choice in choices
    ]  # fmt: skip
    return np.hstack((np.array(rules, np.float64), draws))


# What comes of it --------------------------------------------------------------------------------------------------------


class StepResults(NamedTuple):
    """What some steps of some rows gave, on the host."""

    ids: npt.NDArray[np.int32]  # (steps, rows)
    records: npt.NDArray[np.float64]  # (steps, rows, record size); of size 0 where there are none
    sites: Mapping[str, npt.NDArray[np.float32]]  # (steps, rows, width)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Steps one after another."""
        if len(parts) == 1:
            return parts[0]
        sites = {site: np.concatenate([part.sites[site] for part in parts]) for site in parts[0].sites}
        return cls(np.concatenate([part.ids for part in parts]), np.concatenate([part.records for part in parts]), sites)

    def texts(self, choices: Sequence[Choice], heads: Mapping[str, int | None]) -> list[ChosenTokens]:
        """Each row's tokens; `heads`: how many heads a site has."""
        ids = np.where(np.logical_or.accumulate(self.ids == NOT_CHOSEN), NOT_CHOSEN, self.ids)
        return [
            ChosenTokens(row_ids) if choice == BEST else ChosenTokens(row_ids, *self._explained(row, choice, heads))
            for row, (row_ids, choice) in enumerate(zip(ids.T.tolist(), choices, strict=True))
        ]

    def _explained(
        self, row: int, choice: Choice, heads: Mapping[str, int | None]
    ) -> tuple[ChoiceRecords | None, dict[str, npt.NDArray[np.float32]]]:
        """What is known of a row's choices, and what was read at sites."""
        recorded = choice.sampled or choice.candidates > 0
        sites = {site: _with_axes(self.sites[site][:, row], heads[site]) for site in choice.sites}
        return read_records(self.records[:, row]) if recorded else None, sites


PendingResults = Callable[[], StepResults]  # waits for them
PendingTexts = Callable[[], list[ChosenTokens]]


def _with_axes(values: npt.NDArray[np.float32], heads: int | None) -> npt.NDArray[np.float32]:
    """A site's values for some tokens, (tokens, width), with the axes of the site."""
    return values[None] if heads is None else values.reshape(len(values), heads, -1).swapaxes(0, 1)[None]


@dataclass(frozen=True)
class StepTensors:
    """Where captured steps write what they choose and see, and read how to choose: at fixed addresses of the device."""

    chosen: Tensor  # (steps, rows) int32
    rules: Tensor  # (rows, RULES + steps)
    records: Tensor  # (steps, rows, record size)
    sites: Mapping[str, Tensor]  # (steps, rows, width)

    @classmethod
    def empty(cls, rows: int, mode: ChoiceMode | None, widths: Mapping[str, int], device: torch.device) -> Self:
        size = 0 if mode is None else record_size(mode.shown)
        return cls(
            torch.empty(MAX_STEPS, rows, dtype=torch.int32, device=device),
            torch.ones(rows, RULES + MAX_STEPS, dtype=torch.float64, device=device),
            torch.empty(MAX_STEPS, rows, size, dtype=torch.float64, device=device),
            {site: torch.empty(MAX_STEPS, rows, width, device=device) for site, width in widths.items()},
        )

    def set_rules(self, choices: Sequence[Choice], draws: Draws) -> None:
        numbers = to_device(rule_numbers(choices, draws), self.rules.device)
        self.rules[: len(numbers), : numbers.shape[1]].copy_(numbers)

    def results(self, steps: int, rows: int) -> PendingResults:
        """What the first `steps` steps write."""
        tensors = [self.chosen, self.records, *self.sites.values()]
        copies = HostCopies([tensor[:steps, :rows] for tensor in tensors])

        def wait() -> StepResults:
            ids, records, *sites = copies.wait()
            return StepResults(ids, records, dict(zip(self.sites, sites, strict=True)))

        return wait


# Tokens that are not known yet ---------------------------------------------------------------------------------------------


def set_last_chosen(rows: Sequence[GpuRow], tokens: Tensor) -> None:
    """Keep the token that was chosen last for each row, (rows), on the device."""
    tokens = tokens.clamp(min=0)  # a copy; a token that could not be chosen is fed for nothing
    for index, row in enumerate(rows):
        row.last_chosen = tokens, index


def set_unknown(ids: Tensor, rows: Sequence[GpuRow], tokens: Sequence[int | None]) -> None:
    """Set the ids of rows that have no token on the host."""
    places = [place for place, token in enumerate(tokens) if token is None]
    chosen = last_chosen([rows[place] for place in places])
    if len(places) == len(rows):
        ids[: len(rows)].copy_(chosen)
    else:
        ids[to_device(np.array(places), ids.device)] = chosen


def last_chosen(rows: Sequence[GpuRow]) -> Tensor:
    """The token that was chosen last for each row, (rows), on the device."""
    chosen = [row.last_chosen for row in rows]
    tensors = {id(tensor): tensor for tensor, _ in chosen}
    tokens = torch.cat([*tensors.values()])
    firsts = dict(zip(tensors, np.cumsum([0, *map(len, tensors.values())]).tolist(), strict=False))
    places = np.array([firsts[id(tensor)] + index for tensor, index in chosen])
    if np.array_equal(places, np.arange(len(tokens))):
        return tokens
    return tokens[to_device(places, tokens.device)]


# Captured steps ----------------------------------------------------------------------------------------------------------

Finish = Callable[[list[Tensor], Mapping[str, Tensor]], list[Tensor | None]]


class StepDecoder:
    """Queues steps of an executor's rows: captured passes of one token a row."""

    def __init__(
        self, kernels: Any, device: torch.device, program: Callable[[frozenset[str]], DeviceProgram],
        captured: Callable[[CapturedShape, Any, PassInput, Finish], CapturedPass],
    ) -> None:  # fmt: skip
        """`program`: the one that reads these sites; `captured`: a pass of it over what is fed, with what finishes it."""
        self._kernels, self._device, self._program, self._captured = kernels, device, program, captured
        self._tensors: dict[Any, StepTensors] = {}

    def enqueue(
        self, rows: Sequence[GpuRow], tokens: Sequence[int | None], choices: Sequence[Choice], draws: Draws
    ) -> PendingTexts:
        """Queue the next tokens of rows, whose pages are reserved; the rows grow by as many.

        A row without a token goes on from the one that was chosen last for it.
        """
        parts = [
            group[first : first + SIZES[-1]]
            for group in self._groups(rows, draws.shape[1])
            for first in range(0, len(group), SIZES[-1])
        ]
        waits = [
            self._enqueue_group([rows[n] for n in part], [tokens[n] for n in part], [choices[n] for n in part], draws[part])
            for part in parts
        ]

        def wait() -> list[ChosenTokens]:
            texts = {
                index: text
                for part, wait_for_part in zip(parts, waits, strict=True)
                for index, text in zip(part, wait_for_part(), strict=True)
            }
            return [texts[index] for index in range(len(rows))]

        return wait

    def _groups(self, rows: Sequence[GpuRow], count: int) -> list[list[int]]:
        """The numbers of the rows that go together: those that have the same frequencies of RoPE, for all of these steps."""
        program = self._program(frozenset()).program
        if not program.depends_on_length:
            return [list(range(len(rows)))]
        groups: dict[object, list[int]] = {}
        for index, row in enumerate(rows):
            key = program.frequency_lengths(row.length + 1), program.frequency_lengths(row.length + count)
            groups.setdefault(key, []).append(index)
        return list(groups.values())

    def _enqueue_group(
        self, rows: Sequence[GpuRow], tokens: Sequence[int | None], choices: Sequence[Choice], draws: Draws
    ) -> PendingTexts:
        """As many rows as one captured pass has."""
        mode, sites = mode_of(choices), frozenset[str]().union(*(choice.sites for choice in choices))
        prepared = self._program(sites)
        places = {site: prepared.program.sites[site] for site in sorted(sites)}
        heads = {site: place.heads for site, place in places.items()}
        parts: list[PendingResults] = []
        first, last = (prepared.program.frequency_lengths(rows[0].length + steps) for steps in (1, draws.shape[1]))
        for done in range(0, draws.shape[1], step := MAX_STEPS if first == last else 1):
            some = draws[:, done : done + step]
            parts.append(self._enqueue_steps(rows, tokens, choices, some, prepared, mode, places))
            tokens = [None] * len(rows)
            for row in rows:
                row.length += some.shape[1]

        def wait() -> list[ChosenTokens]:
            return StepResults.joined([part() for part in parts]).texts(choices, heads)

        return wait

    def _enqueue_steps(
        self, rows: Sequence[GpuRow], tokens: Sequence[int | None], choices: Sequence[Choice], draws: Draws,
        prepared: DeviceProgram, mode: ChoiceMode | None, places: Mapping[str, SiteLocation],
    ) -> PendingResults:  # fmt: skip
        """As many steps as have room in the tensors that they write to."""
        size, steps = padded_size(len(rows)), draws.shape[1]
        assert size is not None
        key = (size, mode, *places)
        if key not in self._tensors:
            widths = {site: place.width for site, place in places.items()}
            self._tensors[key] = StepTensors.empty(size, mode, widths, self._device)
        tensors = self._tensors[key]
        if mode is not None:
            tensors.set_rules(choices, draws)
        chunks = [FeedChunk(0, Feed(row, (token or 0,)), row, 0, 1) for row, token in zip(rows, tokens, strict=True)]
        fed = PassInput(chunks, [1] * len(chunks), [row.source_pages for row in rows])
        keys, source_keys = fed.most_keys
        prepared.set_length(min(chunk.text_length for chunk in chunks))  # rows of a group that cross a switch end there
        shape = CapturedShape.of(size, size, size, keys + steps - 1, source_keys, ahead=mode or "best")
        finish = partial(self._advance, prepared.program, mode, tensors, places)
        replay = self._captured(shape, prepared, fed, finish)
        if None in tokens:
            set_unknown(shape.layout.views(replay.numbers.device)["ids"], rows, tokens)
        for _ in range(steps):
            replay()
        set_last_chosen(rows, tensors.chosen[steps - 1, : len(rows)])
        return tensors.results(steps, len(rows))

    def _advance(
        self, program: Program, mode: ChoiceMode | None, tensors: StepTensors, places: Mapping[str, SiteLocation],
        buffers: list[Tensor], numbers: Mapping[str, Tensor],
    ) -> list[Tensor | None]:  # fmt: skip
        """The end of a pass: choose each row's token, make it the next one, and keep what was read."""
        assert program.scores is not None
        scores, step = buffers[program.scores], numbers["step"]
        tokens = torch.empty(len(scores), dtype=torch.int32, device=self._device)
        if mode is None:
            self._kernels.choose_best(scores, tokens)
        else:
            self._kernels.choose(scores, tensors.rules, step, tensors.records, tokens, mode)
        for site, place in places.items():
            values = buffers[place.buffer][:, place.column : place.column + place.width]
            tensors.sites[site].index_copy_(0, step[:1].long(), values[None])
        pass_numbers = (numbers[name] for name in ("ids", "positions", "slots", "starts", "ends"))
        self._kernels.advance(tokens, tensors.chosen, step, *pass_numbers)
        return []
