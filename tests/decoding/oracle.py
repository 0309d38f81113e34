"""An executor without a model: its scores follow from all that a row remembers, so nothing can be mixed up unseen.

And one with a model that counts its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.decoding import GenerationConfig, Policy, Recipe, StepDetail, policies
from glassformer.decoding.shortlist import Shortlist, log_softmax
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import NO_EXTRAS, Capabilities, Description, Feed, Want
from glassformer.ground.candidates import Candidates, top


@dataclass(eq=False)
class Line:
    """A row: its source and the ids that it remembers."""

    source: tuple[int, ...]
    ids: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return len(self.ids)


class CountedExecutor(PlainExecutor):
    """A model's executor that says which rows are open."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.rows: list[Any] = []

    def open(self, source: Sequence[int] | None = None) -> Any:
        self.rows.append(super().open(source))
        return self.rows[-1]

    def fork(self, row: Any, length: int | None = None) -> Any:
        self.rows.append(super().fork(row, length))
        return self.rows[-1]

    def close(self, row: Any) -> None:
        super().close(row)
        self.rows = [other for other in self.rows if other is not row]


class OracleScores:
    def __init__(self, scores: list[Any]) -> None:
        self.sites: dict[str, Any] = {}
        self._scores = scores

    def host(self, index: int = -1) -> Any:
        return self._scores[index]

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class Oracle:
    """Scores are random numbers that depend on the seed, the source and the ids so far; or on a function of the ids."""

    def __init__(self, size: int = 12, seed: int = 0, context: int = 64, scores: Any = None, noise: float = 0.0) -> None:
        """`noise`: how much another oracle's scores, by its own seed, are mixed in."""
        self.size, self.seed, self.context, self.noise = size, seed, context, noise
        self.rows: list[Line] = []  # that are open
        self.passes: list[list[int]] = []  # how many ids each feed had, pass by pass
        self.selects: list[tuple[int, ...]] = []
        self._scores = scores or self._random
        self._known: dict[Any, Any] = {}

    def _random(self, source: tuple[int, ...], ids: tuple[int, ...]) -> Any:
        draw = np.random.default_rng([self.seed, len(source), *source, *ids])
        other = np.random.default_rng([self.seed + 1, len(source), *source, *ids])
        return (3 * (draw.standard_normal(self.size) + self.noise * other.standard_normal(self.size))).astype(np.float32)

    def after(self, ids: Sequence[int], source: Sequence[int] = ()) -> Any:
        """The scores after these ids."""
        key = tuple(source), tuple(ids)
        if key not in self._known:
            self._known[key] = self._scores(*key)
        return self._known[key]

    def open(self, source: Sequence[int] | None = None) -> Line:
        self.rows.append(Line(tuple(source or ())))
        return self.rows[-1]

    def run(self, feeds: Sequence[Feed]) -> list[Any]:
        assert len({feed.row for feed in feeds}) == len(feeds)
        self.passes.append([len(feed.ids) for feed in feeds])
        return [self._one(feed) for feed in feeds]

    def _one(self, feed: Feed) -> OracleScores:
        row: Any = feed.row
        assert row in self.rows
        assert len(feed.ids) > 0
        before, row.ids = row.length, (*row.ids, *feed.ids)
        assert row.length <= self.context
        ends = range(before + 1, row.length + 1)
        wanted = {Want.NONE: (), Want.LAST: ends[-1:], Want.ALL: ends}[feed.want]
        return OracleScores([self.after(row.ids[:end], row.source) for end in wanted])

    def fork(self, row: Any, length: int | None = None) -> Line:
        self.rows.append(Line(row.source, row.ids[:length]))
        return self.rows[-1]

    def select(self, rows: Sequence[Any], parents: Sequence[int]) -> None:
        assert len(rows) == len(parents)
        self.selects.append(tuple(parents))
        held = [rows[parent].ids for parent in parents]
        for row, ids in zip(rows, held, strict=True):
            row.ids = ids

    def rewind(self, row: Any, length: int) -> int:
        row.ids = row.ids[:length]
        return len(row.ids)

    def close(self, row: Any) -> None:
        self.rows.remove(row)

    @property
    def capabilities(self) -> Capabilities:
        return NO_EXTRAS

    def describe(self) -> Description:
        return Description("oracle", "none", "float32", 1)


def recipe(**changes: Any) -> Recipe:
    return Recipe.of(GenerationConfig().merged(changes))


def group(
    prompt: Sequence[int], made: Recipe | None = None, *, detail: StepDetail | None = None, **changes: Any
) -> list[Policy]:
    """The policies of one prompt."""
    more = {} if detail is None else {"detail": detail}
    return policies(made or recipe(**changes), prompt, context=64, **more)


def logprobs(oracle: Oracle, prompt: Sequence[int], text: Sequence[int]) -> list[float]:
    """What each token of a text has."""
    ids = (*prompt, *text)
    places = range(len(prompt), len(ids))
    return [float(log_softmax(oracle.after(ids[:place]))[ids[place]]) for place in places]


def only(field: Shortlist, tokens: Sequence[int]) -> Shortlist:
    """Of the whole vocabulary none but these."""
    return field.keep(np.isin(np.arange(field.scores.size), np.asarray(tokens, np.int64)))
