"""A text that is read once, and others that begin like it.

Shapes: logits and probabilities (vocabulary,).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from glassformer.engine.protocol import Executor, Feed, Row, Want, common_prefix
from glassformer.ground.candidates import LogProbabilities, log_softmax
from glassformer.ground.errors import NotNumbers
from glassformer.ground.ownership import NotCopied
from glassformer.ground.sites import Watch
from glassformer.see.activations import CHUNK_BYTES, CHUNK_TOKENS, Activations, to_numpy
from glassformer.see.explain.words import LIKELY
from glassformer.see.passes import grouped
from glassformer.see.view import Floats

BATCH_TOKENS = 1024  # that go through in one pass


class ReadText(NotCopied):
    """A text in a row of its executor, and what the model expected after each of its tokens."""

    def __init__(self, reading: Activations, end: int, kept: int) -> None:
        """`end`: how many tokens are read. `kept`: the position from which on logits are kept."""
        self.reading, self.executor, self.ids = reading, reading.model.executor, reading.ids[:end]
        self.first_kept = kept
        self.kept: list[Floats] = []
        self.likely: list[list[int]] = [[]]  # in the place of each token
        self.row = self.executor.open(None)
        self.sum: LogProbabilities = np.zeros(1)  # of the probabilities after all tokens

    def read(self) -> None:
        size = max(1, min(CHUNK_TOKENS, CHUNK_BYTES // (4 * self.reading.model.config.vocab_size)))
        for start in range(0, len(self.ids), size):
            ids = self.ids[start : start + size]
            (output,) = self.executor.run([Feed(self.row, ids, Want.ALL, text_length=len(self.ids))])
            for index in range(len(ids)):
                logits = output.host(index)
                self.sum = self.sum + np.exp(log_softmax(logits))
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
        return probability(self.logits(position), token)

    def elsewhere(self, position: int, token: int) -> float:
        """How probable the model held a token to be after the text's other tokens, on average."""
        return max(0.0, float(self.sum[token]) - self.probability(position, token)) / len(self.ids)

    def after(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """The logits after other texts, of which what they have in common with this one is not read again."""
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

    def after_each(self, text: Sequence[int], first: int) -> list[Floats]:
        """The logits after each token of another text, from a position on."""
        shared = min(self._shared(text), first)
        row = self.executor.fork(self.row, shared)
        try:
            (output,) = self.executor.run([Feed(row, text[shared:], Want.ALL)])
            return [output.host(index).copy() for index in range(first - shared, len(text) - shared)]
        finally:
            self.executor.close(row)

    def _shared(self, text: Sequence[int]) -> int:
        return min(common_prefix(self.ids, text), len(text) - 1)


@contextmanager
def read_text(reading: Activations, end: int, kept: int) -> Iterator[ReadText]:
    text = ReadText(reading, end, kept)
    try:
        text.read()
        yield text
    finally:
        text.executor.close(text.row)


def probability(logits: Floats, token: int) -> float:
    return float(np.exp(log_softmax(logits)[token]))


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
