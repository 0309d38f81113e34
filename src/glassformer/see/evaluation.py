"""How well a model predicts a text: its perplexity.

The text is fed as it is (teacher-forced), in windows that begin anew, and each token is scored by what came before it in its
window. Perplexity is 2 to the mean surprisal in bits: the number of equally likely tokens that would surprise as much. It
says what quantizing weights costs. Works on every executor, a chunk of positions at a time.

Shapes: logs (positions, vocabulary), the logarithms of probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Executor, Feed, Want
from glassformer.ground.candidates import LogProbabilities, log_softmax
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_seconds, pluralize
from glassformer.see.passes import open_row
from glassformer.see.protocols import ModelLike
from glassformer.see.view import View
from glassformer.text import Tokenizer


@dataclass(frozen=True)
class TextEvaluation(View):
    """A text's surprisal under a model. Bits per byte compare models of any vocabularies; perplexity does not.

    Only tokens that are predicted count, in bits and in bytes: not one that begins a window with nothing before it.
    """

    SCHEMA = "glassformer.evaluation/2"

    model: str
    tokens: int  # that were scored
    bytes: int  # of the tokens that were scored
    bits: float  # of surprisal, in all
    loss: float  # as trainings have it: the mean surprisal, in nats
    perplexity: float
    bits_per_byte: float  # bits ÷ bytes
    window: int  # tokens that are read together
    stride: int  # tokens that each window adds
    seconds: float

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: {pluralize(self.tokens, 'token')} of text"
        rows = (
            ("surprisal", f"{self.bits / self.tokens:.4f}", "bits per token"),
            ("loss", f"{self.loss:.4f}", "the same in nats, as trainings have it"),
            ("perplexity", f"{self.perplexity:.3f}", "as if choosing among so many tokens"),
            ("bits per byte", f"{self.bits_per_byte:.4f}", "what comparing models of other vocabularies takes"),
        )
        overlap = self.window - self.stride
        context = f"each window begins with {overlap} tokens of the one before" if overlap else "each window begins anew"
        speed = f"{self.tokens / self.seconds:,.0f} tokens/s" if self.seconds else ""
        note = f"in windows of {self.window} tokens; {context} · {format_seconds(self.seconds)} · {speed}"
        columns = (Column("", "text"), Column("", "number"), Column("", "text"))
        return Page.titled(title, Table(columns, tuple(TableRow(row) for row in rows)), Paragraph(note))

    def __repr__(self) -> str:
        return f"TextEvaluation({self.perplexity:.2f} perplexity, {self.bits_per_byte:.3f} bits per byte)"


WINDOW = 512  # tokens; longer ones cost more and change little
CHUNK = 32  # positions whose logits are held at once
HELD_OUT = Path(__file__).with_name("held_out.txt")  # Moby-Dick, chapter 86; in the public domain


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How surprising a text was."""

    tokens: int  # that were scored
    bits: float  # of surprisal, in all

    @property
    def perplexity(self) -> float:
        return float(2.0 ** (self.bits / self.tokens))


def added_bos(tokenizer: Tokenizer) -> int | None:
    """The token that the tokenizer puts before each text, if it does; a model may need it."""
    framed, bare = (tokenizer("x", add_special_tokens=added)["input_ids"] for added in (True, False))
    return framed[0] if len(framed) > len(bare) and framed[0] == tokenizer.bos_token_id else None


def likelihood(
    executor: Executor,
    ids: Sequence[int],
    *,
    bos: int | None = None,
    window: int = WINDOW,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Likelihood:
    """How surprising these tokens are; `bos`: a token that each window begins with; `stride`: as `windows` has it."""
    count, nats = 0, 0.0
    for targets, logs in log_probabilities(executor, ids, bos, window, stride):
        count += len(targets)
        nats -= target_sum(logs, targets)
        if progress is not None:
            progress(count, len(ids))
    return Likelihood(count, nats / math.log(2))


def evaluate(
    model: ModelLike,
    text: str,
    *,
    window: int = WINDOW,
    stride: int | None = None,
    progress: Progress | None = None,
) -> TextEvaluation:
    """How well a model predicts a text, in windows; `stride`: how many tokens each adds, for more context."""
    ids, bos = model.tokenizer.encode(text, add_special_tokens=False), added_bos(model.tokenizer)
    window = min(window, model.executor.context)
    started = perf_counter()
    result = likelihood(model.executor, ids, bos=bos, window=window, stride=stride, progress=progress)
    unscored = sum(len(model.tokenizer.token_bytes(token_id)) for token_id in unscored_ids(ids, bos, window, stride))
    size = max(1, len(text.encode()) - unscored)  # a tokenizer that normalizes may spell a token longer than the text does
    loss = result.bits * math.log(2) / result.tokens
    return TextEvaluation(
        model.name, result.tokens, size, result.bits, loss, result.perplexity, result.bits / size, window,
        stride or window - (bos is not None), perf_counter() - started,
    )  # fmt: skip


def windows(ids: Sequence[int], bos: int | None, size: int) -> list[tuple[int, ...]]:
    """A text in windows of `size` tokens; each begins with `bos`, where there is such a token."""
    before = () if bos is None else (bos,)
    step = size - len(before)
    return [(*before, *ids[start : start + step]) for start in range(0, len(ids), step)]


def scored_windows(
    ids: Sequence[int], bos: int | None, size: int, stride: int | None = None
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Windows of a text, and how many of the last tokens of each are scored.

    `stride`: how many tokens each window adds. If it holds more, it begins with tokens of the one before, so that none is
    scored with little context. Without a stride, each begins anew.
    """
    if stride is None:
        yield from ((span, len(span) - 1) for span in windows(ids, bos, size))
        return
    before = () if bos is None else (bos,)
    room = size - len(before)
    if not 0 < stride <= room:
        raise InputError(f"a window of {size} tokens cannot add {stride}. Give a stride from 1 to {room}.")
    end = min(room, len(ids))
    yield (*before, *ids[:end]), end + len(before) - 1
    while end < len(ids):
        start, end = end, min(end + stride, len(ids))
        yield (*before, *ids[max(0, end - room) : end]), end - start


def unscored_ids(ids: Sequence[int], bos: int | None, size: int, stride: int | None = None) -> Sequence[int]:
    """The tokens of a text that `scored_windows` leaves unscored, since nothing stands before them."""
    if bos is not None:
        return ()
    return ids[::size] if stride is None else ids[:1]


def log_probabilities(
    executor: Executor, ids: Sequence[int], bos: int | None, window: int, stride: int | None = None
) -> Iterator[tuple[npt.NDArray[np.intp], LogProbabilities]]:
    """The tokens of a text, chunk by chunk, with the log-probabilities of the whole vocabulary at their places."""
    if len(ids) + (bos is not None) < 2:
        raise InputError("a text needs at least two tokens to say how well a model predicts it. Give a longer one.")
    for span, scored in scored_windows(ids, bos, min(window, executor.context), stride):
        yield from _score_window(executor, span, scored)


def _score_window(
    executor: Executor, ids: Sequence[int], scored: int
) -> Iterator[tuple[npt.NDArray[np.intp], LogProbabilities]]:
    with open_row(executor) as row:
        first = len(ids) - 1 - scored  # the position whose logits are those of the first scored token
        if first > 0:
            executor.run([Feed(row, ids[:first], Want.NONE, text_length=len(ids))])
        for start in range(first, len(ids) - 1, CHUNK):
            chunk = ids[start : min(start + CHUNK, len(ids) - 1)]
            (logits,) = executor.run([Feed(row, chunk, Want.ALL, text_length=len(ids))])
            logs = log_softmax(np.stack([logits.host(index) for index in range(len(chunk))]))
            yield np.asarray(ids[start + 1 : start + 1 + len(chunk)]), logs


def target_sum(logs: LogProbabilities, targets: npt.NDArray[np.intp]) -> float:
    return float(logs[np.arange(len(targets)), targets].sum())
