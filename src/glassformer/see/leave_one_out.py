"""Leaving out: what a metric is without some tokens of a text. One pass without gradients for each shorter text.

The shorter texts begin alike: a model that writes reads the text once, and each row goes on from the first place where a
token is missing, many rows in a pass. A token after the place where the answer is read has no say in it; one that must be
there, since the answer is read in its place or nothing would be left, cannot be left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import InputError, spell
from glassformer.ground.progress import Progress
from glassformer.see.activations import Activations
from glassformer.see.explain.words import Word, words_of
from glassformer.see.metrics import Target
from glassformer.see.passes import grouped, open_row

BATCH_TOKENS = 1024  # that go through in one pass
BATCH_ROWS = 64
Place: TypeAlias = tuple[bool, int]  # whether it is in an encoder-decoder's source, and the position there
Places: TypeAlias = Collection[Place]
UnitKind: TypeAlias = Literal["tokens", "words"]


@dataclass(frozen=True)
class Unit:
    """What is left out together: a token, or a word with all of its places."""

    text: str
    places: tuple[Place, ...]


def token_units(reading: Activations, places: Iterable[Place]) -> list[Unit]:
    texts = {True: [token.text for token in reading.source_tokens], False: reading.texts}
    return [Unit(texts[in_source][position], ((in_source, position),)) for in_source, position in places]


class LeaveOneOut:
    """A text, and a metric of it."""

    def __init__(self, reading: Activations, target: Target) -> None:
        self.reading, self.target = reading, target
        self.end = len(reading.ids) if target.position is None or not reading.model.writes else target.position + 1
        (self.value,) = self._read([()])  # of the whole text

    def places(self, allow_none: bool = False) -> list[Place]:
        """The tokens that can be left out; an error if there is none, unless that is allowed."""
        reading, target = self.reading, self.target
        least = 3 if target.loss else 2  # tokens, of which one goes
        fixed = {target.position} if target.position is not None and not reading.model.writes else set()
        fixed |= {0} if reading.source is not None else set()  # a decoder's start
        text = [(False, position) for position in range(len(reading.ids)) if self.end >= least and position not in fixed]
        source = range(len(reading.source)) if reading.source is not None and len(reading.source) > 1 else ()
        if not (places := [*((True, position) for position in source), *text]) and not allow_none:
            raise InputError(
                "no token can be left out of a text that has only one. Take more text, or "
                f"{spell('method', 'input-x-gradient')}."
            )
        return places

    def units(self, by: UnitKind) -> list[Unit]:
        """What is left out one by one. What a template or a tokenizer puts around a text is no word, nor is punctuation."""
        places = self.places()
        if by == "tokens":
            return token_units(self.reading, places)
        return self._words(set(places))

    def players(self, by: UnitKind) -> list[Unit]:
        """What can be left out in any combination, and then something remains to be read.

        What a template or a tokenizer puts around a text stays, and so does the token at which the answer is read.
        """
        places = [place for place in self.places() if place[0] or place[1] < self.end]
        template = [(in_source, word) for in_source, word in self._all_words() if word.origin == "template"]
        kept = {(in_source, position) for in_source, word in template for position in word.positions}
        for in_source, length in ((True, len(self.reading.source or ())), (False, self.end)):
            stays = any((in_source, token) in kept or (in_source, token) not in places for token in range(length))
            if not stays or (self.reading.model.writes and not in_source):
                kept.add((in_source, length - 1))
        free = [place for place in places if place not in kept]
        if not free:
            raise InputError(
                "nothing of this text can be left out in every combination. Take more text, or "
                f"{spell('method', 'leave-one-out')}."
            )
        return token_units(self.reading, free) if by == "tokens" else self._words(set(free))

    def _words(self, places: set[Place]) -> list[Unit]:
        """Words as far as all of a place's tokens can be left out."""
        found = []
        for in_source, word in self._all_words():
            whole = [place for place in word.places if all((in_source, position) in places for position in place)]
            if whole and word.origin != "template":
                found.append(Unit(word.text, tuple((in_source, position) for place in whole for position in place)))
        if not found:
            raise InputError(f"no word can be left out of this text. Leave tokens out: {spell('by', 'tokens')}.")
        return found

    def _all_words(self) -> list[tuple[bool, Word]]:
        reading = self.reading
        words = [(False, word) for word in words_of(reading, self.end, reading.contents)]
        if reading.source is None:
            return words
        source = replace(reading, ids=reading.source, source=None, prompt_length=len(reading.source))
        return [*((True, word) for word in words_of(source, len(reading.source), reading.contents)), *words]

    def losses(self, gone: Sequence[Places], progress: Progress | None = None) -> list[float]:
        """What leaving out each of some sets of places takes off the metric."""
        return [self.value - value for value in self.values(gone, progress)]

    def values(self, gone: Sequence[Places], progress: Progress | None = None) -> list[float]:
        """The metric without each of some sets of places."""
        heard = [frozenset(place for place in places if place[0] or place[1] < self.end) for places in gone]
        values = iter(self._read([places for places in heard if places], progress))
        return [next(values) if places else self.value for places in heard]

    def _read(self, gone: Sequence[Places], progress: Progress | None = None) -> list[float]:
        values: list[float] = []
        for value in self._rows(gone) if self._in_rows else map(self._alone, gone):
            values.append(value)
            if progress is not None:
                progress(len(values), len(gone))
        return values

    def cost(self, gone: Sequence[Places]) -> int:
        """How many tokens are read for that."""
        return sum(map(self._row_cost, gone))

    def _row_cost(self, gone: Places) -> int:
        whole = self.end + len(self.reading.source or ())
        if not self._in_rows or any(in_source for in_source, _ in gone):
            return whole - len(gone)
        return max(1, self.end - min((position for _, position in gone), default=self.end) - len(gone))

    @property
    def dtype(self) -> str:
        """What the metric is computed in."""
        model = self.reading.model
        return model.executor.describe().dtype if self._in_rows else str(model.packed_module.dtype).removeprefix("torch.")

    @property
    def _in_rows(self) -> bool:
        """Whether the executor can run it, which has the scores of places and no more."""
        return self.reading.model.writes and self.target.position is not None

    def _rows(self, gone: Sequence[Places]) -> Iterator[float]:
        """Rows of an executor, some in each pass."""
        executor, reading = self.reading.model.executor, self.reading
        with open_row(executor, reading.source) as whole:
            executor.run([Feed(whole, reading.ids[: self.end], Want.NONE)])
            for batch in grouped(gone, self._row_cost, BATCH_TOKENS, BATCH_ROWS):
                feeds: list[Feed] = []
                try:
                    for places in batch:
                        source, text = self._without(places)
                        if source != reading.source:
                            feeds.append(Feed(executor.open(source), text, Want.LAST))
                            continue
                        # the last token is read for its logits
                        shared = min([len(text) - 1, *(position for _, position in places)])
                        feeds.append(Feed(executor.fork(whole, shared), text[shared:], Want.LAST))
                    for output in executor.run(feeds):
                        yield self.target.value(output.host())
                finally:
                    for feed in feeds:
                        executor.close(feed.row)

    def _without(self, gone: Places) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
        """The source and the text that remain."""
        source, text = self.reading.source, self.reading.ids[: self.end]
        if source is not None:
            source = tuple(token for position, token in enumerate(source) if (True, position) not in gone)
        return source, tuple(token for position, token in enumerate(text) if (False, position) not in gone)

    def _alone(self, gone: Places) -> float:
        """A text by itself in PyTorch, where other heads, the loss and functions of all logits are known."""
        from glassformer.see.differentiation import Differentiation

        source, ids = self._without(gone)
        reading, target = replace(self.reading, ids=ids, source=source, prompt_length=0), self.target
        if (position := target.position) is not None:
            before = sum(not in_source and removed < position for in_source, removed in gone)
            target = replace(target, position=position - before)
        text = Differentiation(reading)
        values, _ = text.run(target, tuple(stack.requires_grad_() for stack in text.vectors()))  # as a function expects it
        return float(values[0].detach())
