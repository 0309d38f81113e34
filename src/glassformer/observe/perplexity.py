"""How well a model foretells a text: its perplexity, and how far two models differ over the same tokens.

The text is fed as it is (teacher-forced), in windows that begin anew, and each token is scored by what came before it in its
window. Perplexity is e to the mean surprise in nats: the number of equally likely tokens that would surprise as much. It
says what packing weights costs; how far the two models' distributions diverge, and how often their first choices agree, say
it more finely. Works on every executor, a chunk of positions at a time.

Shapes: logs (positions, vocabulary), the logarithms of probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.candidates import log_softmax
from glassformer.engine.protocol import Executor, Feed, Want
from glassformer.errors import InputError
from glassformer.progress import Progress
from glassformer.text import Tokenizer

WINDOW = 512  # tokens; longer ones cost more and change little
CHUNK = 32  # positions whose scores are held at once
HELD_OUT = Path(__file__).with_name("held_out.txt")  # Moby-Dick, chapter 86; in the public domain

Logs: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How surprising a text was."""

    tokens: int  # that were scored
    nats: float  # of surprise, all together

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models over the same tokens."""

    first: Likelihood
    second: Likelihood
    divergence: float  # of the second's distribution from the first's: Kullback and Leibler's, in nats per token
    agreement: float  # the share of tokens whose most likely one is the same


def begins_with(tokenizer: Tokenizer) -> int | None:
    """The token that the tokenizer puts before each text, which a model may need to see."""
    framed, bare = (tokenizer("x", add_special_tokens=added)["input_ids"] for added in (True, False))
    return framed[0] if len(framed) > len(bare) and framed[0] == tokenizer.bos_token_id else None


def likelihood(
    executor: Executor,
    ids: Sequence[int],
    *,
    begin: int | None = None,
    window: int = WINDOW,
    progress: Progress | None = None,
) -> Likelihood:
    """How surprising these tokens are; `begin`: a token that each window begins with."""
    count, nats = 0, 0.0
    for targets, logs in _scored(executor, ids, begin, window):
        count += len(targets)
        nats -= _taken(logs, targets)
        if progress is not None:
            progress(count, len(ids))
    return Likelihood(count, nats)


def compare(
    first: Executor, second: Executor, ids: Sequence[int], *, begin: int | None = None, window: int = WINDOW
) -> Comparison:
    """Two executors of one vocabulary over the same tokens; the first is the one to be like."""
    window = min(window, first.context, second.context)
    count, nats, divergence, same = 0, [0.0, 0.0], 0.0, 0
    pairs = zip(_scored(first, ids, begin, window), _scored(second, ids, begin, window), strict=True)
    for (targets, one), (_, other) in pairs:
        count += len(targets)
        nats = [so_far - _taken(logs, targets) for so_far, logs in zip(nats, (one, other), strict=True)]
        divergence += float((np.exp(one) * (one - other)).sum())
        same += int((one.argmax(axis=1) == other.argmax(axis=1)).sum())
    return Comparison(Likelihood(count, nats[0]), Likelihood(count, nats[1]), divergence / count, same / count)


def _scored(
    executor: Executor, ids: Sequence[int], begin: int | None, window: int
) -> Iterator[tuple[npt.NDArray[np.intp], Logs]]:
    """The tokens of a text, chunk by chunk, with the logarithms of all probabilities at their places."""
    before = [] if begin is None else [begin]
    if len(before) + len(ids) < 2:
        raise InputError("a text needs at least two tokens to say how well a model foretells it. Give a longer one.")
    step = min(window, executor.context) - len(before)
    for start in range(0, len(ids), step):
        rows = [*before, *ids[start : start + step]]
        yield from _window(executor, rows)


def _window(executor: Executor, ids: Sequence[int]) -> Iterator[tuple[npt.NDArray[np.intp], Logs]]:
    row = executor.open()
    try:
        for at in range(0, len(ids) - 1, CHUNK):
            fed = ids[at : min(at + CHUNK, len(ids) - 1)]
            (scores,) = executor.run([Feed(row, fed, Want.ALL)])
            logs = log_softmax(np.stack([scores.host(index) for index in range(len(fed))]))
            yield np.asarray(ids[at + 1 : at + 1 + len(fed)]), logs
    finally:
        executor.close(row)


def _taken(logs: Logs, targets: npt.NDArray[np.intp]) -> float:
    return float(logs[np.arange(len(targets)), targets].sum())
