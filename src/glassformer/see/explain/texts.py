"""A text that is read once, and others that begin like it.

Shapes: logits and probabilities (vocabulary,).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from glassformer.engine.protocol import BlockInput, Executor, Feed, Row, Want, common_prefix
from glassformer.ground.errors import NotNumbers
from glassformer.ground.ownership import NotCopied
from glassformer.ground.sites import Watch
from glassformer.see.activations import CHUNK_BYTES, CHUNK_TOKENS, Activations, to_numpy
from glassformer.see.attribution import resolve_token_id
from glassformer.see.explain.explanation import Outcome
from glassformer.see.explain.words import LIKELY, Word, alike, embeddings, words_of
from glassformer.see.metrics import find_label
from glassformer.see.passes import encoder_pass, grouped
from glassformer.see.patching.pair import align
from glassformer.see.tokens import describe_tokens, token_text
from glassformer.see.view import Floats

BATCH_TOKENS = 1024  # that go through in one pass


class ReadText(NotCopied):
    """A text in a row of its executor, and what the model expected after each of its tokens.

    An encoder-decoder's words are those of its source: other texts are other sources, before the same target.
    """

    position: int  # after which the answer stands
    chosen: tuple[int, ...] = ()  # the answers that are explained

    def __init__(self, reading: Activations, end: int, kept: int) -> None:
        """`end`: how many tokens are read. `kept`: the position from which on logits are kept."""
        self.reading, self.executor, self.ids = reading, reading.model.executor, reading.ids[:end]
        self.first_kept = kept
        self.kept: list[Floats] = []
        self.likely: list[list[int]] = [[]]  # in the place of each token
        self.others: dict[int, list[int]] = {}  # what could stand in words' places, by their first positions
        self.known: dict[tuple[int, ...], Floats] = {}  # the logits after other texts, as far as they were read before
        self.row = self.executor.open(reading.source)
        self.sum = np.zeros(1)  # of the probabilities after all tokens

    @property
    def ids_with_words(self) -> tuple[int, ...]:
        """The ids of which words are taken away."""
        return self.ids[: self.position + 1] if self.reading.source is None else self.reading.source

    @property
    def texts_with_words(self) -> tuple[str, ...]:
        return tuple(token.text for token in describe_tokens(self.reading.model.tokenizer, self.ids_with_words))

    def words(self) -> list[Word]:
        """What can be taken away of it."""
        reading = self.reading
        if reading.source is None:
            return words_of(reading, self.position + 1, reading.contents)
        source = replace(reading, ids=reading.source, source=None, prompt_length=len(reading.source))
        return words_of(source, len(source), reading.contents)

    def expected(self, word: Word) -> list[int]:
        """What could stand in a word's place: what the model expects there; of a source, what means about the same."""
        if self.reading.source is None:
            return self.likely[word.first]
        return nearest(self.reading, self.ids_with_words[word.first])

    def answer(self, index: int) -> str:
        """What an index of the logits stands for."""
        return token_text(self.reading.model.tokenizer, index)

    def find(self, answer: int | str | None, logits: Floats) -> int:
        """The index that an answer has in the logits; None is the best one's."""
        return resolve_token_id(self.reading.model, answer, logits)

    @property
    def without_rival(self) -> str:
        """What is said where there is no other answer."""
        return f"{self.reading.model.name} has one label, so there is no other that it could lead over."

    @property
    def places_name(self) -> str:
        """Where the answer is read."""
        return "the last token"

    def said(self, index: int, ids: Sequence[int]) -> str:
        """What an index of the logits stands for in another text."""
        return self.answer(index)

    def overlapping(self, index: int) -> tuple[int, ...]:
        """What is so nearly the same answer that it is no rival."""
        return ()

    def outcome(self, best: int, answer: int) -> Outcome:
        """What another text's best answer is to this one's."""
        if best == answer:
            return "unchanged"
        return "another" if alike(self.answer(best), self.answer(answer)) else "another kind"

    def probabilities(self, logits: Floats) -> Floats:
        """Of each token, in float32: what they are compared by needs no more."""
        weights = np.exp(logits - logits.max())
        shares: Floats = weights / np.float32(weights.sum(dtype=np.float64))
        return shares

    def read(self) -> None:
        size = max(1, min(CHUNK_TOKENS, CHUNK_BYTES // (4 * self.reading.model.config.vocab_size)))
        for start in range(0, len(self.ids), size):
            ids = self.ids[start : start + size]
            (output,) = self.executor.run([Feed(self.row, ids, Want.ALL, text_length=len(self.ids))])
            for index in range(len(ids)):
                logits = output.host(index)
                self.sum = self.sum + self.probabilities(logits)
                self.likely.append(best_tokens(logits))
                if start + index >= self.first_kept:
                    self.kept.append(logits.copy())

    def logits(self, position: int) -> Floats:
        """Of what follows a token."""
        logits = self.kept[position - self.first_kept]
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise NotNumbers(
                "the model's logits are not numbers (NaN), so nothing can be explained. Look for what changed them."
            )
        return logits

    def probability(self, position: int, token: int) -> float:
        return float(self.probabilities(self.logits(position))[token])

    def elsewhere(self, position: int, token: int) -> float:
        """How probable the model held a token to be after the text's other tokens, on average."""
        return max(0.0, float(self.sum[token]) - self.probability(position, token)) / len(self.ids)

    def after(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """The logits after other texts, of which what they have in common with this one is not read again."""
        if self.reading.source is not None:
            yield from self._behind(texts)
            return
        found = self._read_after([text for text in texts if tuple(text) not in self.known])
        for text in texts:
            known = self.known.get(tuple(text))
            yield next(found) if known is None else known

    def _read_after(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        for batch in grouped(texts, lambda text: len(text) - self._shared(text), BATCH_TOKENS):
            shared = list(map(self._shared, batch))
            feeds = [
                Feed(self.executor.fork(self.row, count), text[count:]) for text, count in zip(batch, shared, strict=True)
            ]
            try:
                yield from [output.host().copy() for output in self.executor.run(feeds)]
            finally:
                for feed in feeds:
                    self.executor.close(feed.row)

    def _behind(self, sources: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """The logits after the same target, behind other sources."""
        target = self.ids[: self.position + 1]
        for batch in grouped(sources, lambda source: len(source) + len(target), BATCH_TOKENS):
            feeds = [Feed(self.executor.open(tuple(source)), target) for source in batch]
            try:
                yield from [output.host().copy() for output in self.executor.run(feeds)]
            finally:
                for feed in feeds:
                    self.executor.close(feed.row)

    def after_tokens(self, texts: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> Iterator[list[Floats]]:
        """The logits after some tokens of other texts; of an encoder-decoder after this target's, behind other sources."""
        row_bytes: int = 4 * self.reading.model.config.vocab_size

        def size(one: tuple[Sequence[int], Sequence[int]]) -> int:
            return max(len(one[0]), BATCH_TOKENS * row_bytes * len(one[1]) // CHUNK_BYTES)

        for batch in grouped([*zip(texts, positions, strict=True)], size, BATCH_TOKENS):
            rows, heads, tails = list[Row](), list[Feed](), list[Feed]()
            for text, places in batch:
                first, last = min(places), max(places) + 1
                if self.reading.source is None:
                    shared, read = min(self._shared(text), first), text
                    rows.append(self.executor.fork(self.row, shared))
                else:
                    shared, read = 0, self.ids
                    rows.append(self.executor.open(tuple(text)))
                heads += [Feed(rows[-1], read[shared:first], Want.NONE)] if shared < first else []
                tails.append(Feed(rows[-1], read[first:last], Want.ALL))
            try:
                if heads:
                    self.executor.run(heads)
                for output, (_, places) in zip(self.executor.run(tails), batch, strict=True):
                    yield [output.host(place - min(places)).copy() for place in places]
            finally:
                for row in rows:
                    self.executor.close(row)

    def _shared(self, text: Sequence[int]) -> int:
        return min(common_prefix(self.ids, text), len(text) - 1)


class ReadWhole(ReadText):
    """A text that an encoder reads at once: what fills its gap, or how it is labelled."""

    def __init__(self, reading: Activations, position: int | None) -> None:
        """`position`: of the gap, or of the token that is labelled; None: the text as a whole is."""
        self.others = {}
        self.reading, self.ids, self.gap = reading, reading.ids, position
        self.position = len(reading) - 1 if position is None else position
        self.first_kept, self.labels = self.position, reading.model.head != "masked"

    @property
    def ids_with_words(self) -> tuple[int, ...]:
        return self.ids

    def words(self) -> list[Word]:
        words = words_of(self.reading, len(self.ids), self.reading.contents)
        if self.reading.second is not None or self.reading.model.head == "sequence":  # where texts end, and are labelled
            words = [word for word in words if word.origin != "template"]
        return [word for word in words if self.gap not in word.positions]

    def expected(self, word: Word) -> list[int]:
        return nearest(self.reading, self.ids[word.first]) if self.labels else self.likely[word.first]

    def answer(self, index: int) -> str:
        return self.reading.model.label(index) if self.labels else super().answer(index)

    def find(self, answer: int | str | None, logits: Floats) -> int:
        if answer is None or not self.labels:
            return super().find(answer, logits)
        return find_label(self.reading.model, answer).id

    def places(self, rival: int) -> list[int]:
        """The positions at which the answer is read, and not a rival; none where all of them are."""
        if self.gap is not None:
            return [self.gap]
        pooling = next((op.pooling for op in self.reading.model.blueprint.ops if op.pooling), "mean")
        if pooling == "first":
            return [0]
        end = self.reading.model.config.eos_token_id
        ends = [place for place, token in enumerate(self.ids) if pooling == "last" or token == end]
        return [] if pooling == "mean" else ends[-1:]

    @property
    def places_name(self) -> str:
        if self.reading.model.head == "masked":
            return "the gap"
        places = self.places(0)
        return "the first token" if places == [0] else "the token that is read" if places else "the other tokens"

    def counterpart(self, ids: Sequence[int]) -> Activations:
        """Another text as it is read."""
        second, owners = self._second(ids), self.reading.owners
        if second is not None:
            owners = tuple(None if token in self.around else int(place >= second) for place, token in enumerate(ids))
        return replace(self.reading, ids=tuple(ids), prompt_length=len(ids), owners=owners)

    def scored(
        self, ids: Sequence[int], watch: Watch | None = None, begin: BlockInput | None = None
    ) -> tuple[Floats, dict[str, Floats]]:
        """The logits of another text, of each token or of all of it, and what a watch reads."""
        watch = Watch() if watch is None else watch
        watch = Watch(watch.reads | {"scores"}, watch.changes)
        scores, sites = encoder_pass(self.reading.model, ids, watch, begin, second=self._second(ids))
        return sites["scores"] if scores is None else scores, sites  # heads for questions have outputs of other names

    def readout(self, scores: Floats, ids: Sequence[int]) -> Floats:
        """The logits that are explained."""
        return scores if self.gap is None else scores[moved(self.ids, ids, self.gap)]

    def _second(self, ids: Sequence[int]) -> int | None:
        """Where the second text begins in one of which words were taken away or exchanged: behind as many of the tokens
        that stand around the texts.
        """
        if self.reading.second is None:
            return None
        before = sum(token in self.around for token in self.ids[: self.reading.second])
        places = [place for place, token in enumerate(ids) if token in self.around]
        return places[before - 1] + 1

    @cached_property
    def around(self) -> set[int]:
        """The ids of the tokens that stand around two texts."""
        return {token for token, owner in zip(self.ids, self.reading.owners or (), strict=True) if owner is None}

    def read(self) -> None:
        scores, _ = self.scored(self.ids)
        self.kept = [self.readout(scores, self.ids)]
        self.likely = [] if self.labels else list(map(best_tokens, scores))

    def elsewhere(self, position: int, token: int) -> float:
        return 0.0  # in a gap nothing is expected everywhere

    def after(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        for text in texts:
            yield self.readout(self.scored(text)[0], text)


def moved(ids: Sequence[int], other: Sequence[int], position: int) -> int:
    """Where a token stands in a text of which words before it were taken away or exchanged, and others after it.

    >>> moved([1, 5, 6, 4, 7, 2], [1, 6, 4, 7, 2], 3)
    2
    """
    return next(place for place, origin in align(ids, other).items() if origin == position)


def nearest(reading: Activations, token: int) -> list[int]:
    """The tokens whose embeddings are nearest to one's."""
    table = embeddings(reading, range(reading.model.config.vocab_size))
    return best_tokens(table @ table[token])


@contextmanager
def read_text(reading: Activations, end: int, kept: int) -> Iterator[ReadText]:
    text = ReadText(reading, end, kept)
    text.position = end - 1
    try:
        text.read()
        yield text
    finally:
        text.executor.close(text.row)


def best_tokens(logits: Floats, count: int = LIKELY) -> list[int]:
    """The tokens with the highest logits, best first."""
    best = np.argpartition(logits, -count)[-count:] if count < len(logits) else np.arange(len(logits))
    tokens: list[int] = best[np.argsort(-logits[best], kind="stable")].tolist()
    return tokens


def read_again(
    executor: Executor, row: Row, ids: Sequence[int], position: int, watch: Watch
) -> tuple[Floats, dict[str, Floats]]:
    """The logits after one token of a row that is read again under a watch, and what this reads."""
    fork = executor.fork(row, position)
    try:
        (output,) = executor.run([Feed(fork, ids[position : position + 1], watch=watch, text_length=len(ids))])
        return output.host().copy(), {site: to_numpy(value)[0] for site, value in output.sites.items()}
    finally:
        executor.close(fork)
