"""Leave-one-out: what a metric loses when a token is left out of the text. One pass without gradients for each token.

The texts without a token begin alike: a model that writes reads the text once, and each row goes on from the place where its
token would stand, many rows in a pass. A token after the place where the answer is read has no say in it; one that must be
there, since the answer is read in its place or nothing would be left, cannot be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import InputError, spell
from glassformer.ground.progress import Progress
from glassformer.see.activations import Activations
from glassformer.see.metrics import Target
from glassformer.see.passes import grouped, open_row

BATCH_TOKENS = 1024  # that go through in one pass
BATCH_ROWS = 64
Place: TypeAlias = tuple[bool, int]  # whether it is in an encoder-decoder's source, and the position there


class LeaveOneOut:
    """A text, and a metric of it."""

    def __init__(self, reading: Activations, target: Target) -> None:
        self.reading, self.target = reading, target
        self.end = len(reading.ids) if target.position is None or not reading.model.writes else target.position + 1
        self.value: float = self._values([None])[0]  # of the whole text

    def places(self, allow_none: bool = False) -> list[Place]:
        """The tokens that can be left out; an error if there is none, unless that is allowed."""
        reading, target = self.reading, self.target
        least = 3 if target.loss else 2  # tokens, of which one goes
        fixed = {target.position} if target.position is not None and not reading.model.writes else set()
        fixed |= {0} if reading.source is not None else set()  # a decoder's start
        text = [(False, at) for at in range(len(reading.ids)) if self.end >= least and at not in fixed]
        source = range(len(reading.source)) if reading.source is not None and len(reading.source) > 1 else ()
        if not (places := [*((True, at) for at in source), *text]) and not allow_none:
            raise InputError(
                "no token can be left out of a text that has only one. Take more text, or "
                f"{spell('method', 'input-x-gradient')}."
            )
        return places

    def losses(self, places: Sequence[Place], progress: Progress | None = None) -> list[float]:
        """What leaving each of some tokens out takes off the metric."""
        heard = [place for place in places if place[0] or place[1] < self.end]
        values = dict(zip(heard, self._values(heard, progress), strict=True))
        return [self.value - values[place] if place in values else 0.0 for place in places]

    def cost(self, places: Sequence[Place]) -> int:
        """How many tokens are read for that."""
        whole = self.end + len(self.reading.source or ())
        return sum(whole if in_source or not self._in_rows else self.end - at for in_source, at in places)

    def _row_cost(self, place: Place | None) -> int:
        return self.cost([(False, self.end - 1) if place is None else place])

    @property
    def dtype(self) -> str:
        """What the metric is computed in."""
        model = self.reading.model
        return model.executor.describe().dtype if self._in_rows else str(model.packed_module.dtype).removeprefix("torch.")

    @property
    def _in_rows(self) -> bool:
        """Whether the executor can run it, which has the scores of places and no more."""
        return self.reading.model.writes and self.target.position is not None

    def _values(self, places: Sequence[Place | None], progress: Progress | None = None) -> list[float]:
        """The metric without each of some tokens; None: of the whole text."""
        values: list[float] = []
        for value in self._rows(places) if self._in_rows else map(self._alone, places):
            values.append(value)
            if progress is not None:
                progress(len(values), len(places))
        return values

    def _rows(self, places: Sequence[Place | None]) -> Iterator[float]:
        """Rows of an executor, some in each pass."""
        executor, reading = self.reading.model.executor, self.reading
        ids = reading.ids[: self.end]
        with open_row(executor, reading.source) as whole:
            executor.run([Feed(whole, ids, Want.NONE)])
            for batch in grouped(places, self._row_cost, BATCH_TOKENS, BATCH_ROWS):
                feeds = []
                for place in batch:
                    if place is not None and place[0]:
                        assert reading.source is not None
                        feeds.append(Feed(executor.open(_without(reading.source, place[1])), ids, Want.LAST))
                        continue
                    at = len(ids) if place is None else place[1]
                    rest, start = ids[at + 1 :], at
                    if not rest:  # the last token: the one before it is read once more, for its scores
                        start = min(at, len(ids)) - 1
                        rest = ids[start : start + 1]
                    feeds.append(Feed(executor.fork(whole, start), rest, Want.LAST))
                try:
                    for output in executor.run(feeds):
                        yield self.target.value(output.host())
                finally:
                    for feed in feeds:
                        executor.close(feed.row)

    def _alone(self, place: Place | None) -> float:
        """A text by itself in PyTorch, where other heads, the loss and functions of all logits are known."""
        from glassformer.see.differentiation import Differentiation

        reading, target = self.reading, self.target
        if place is not None:
            in_source, at = place
            if in_source:
                assert reading.source is not None
                reading = replace(reading, source=_without(reading.source, at))
            else:
                reading = replace(reading, ids=_without(reading.ids, at), prompt_length=0)
                if target.position is not None and at < target.position:
                    target = replace(target, position=target.position - 1)
        text = Differentiation(reading)
        values, _ = text.run(target, tuple(stack.requires_grad_() for stack in text.vectors()))  # as a function expects it
        return float(values[0].detach())


def _without(ids: tuple[int, ...], at: int) -> tuple[int, ...]:
    return ids[:at] + ids[at + 1 :]
