"""The lens: what each layer would have said, had it been the last (nostalgebraist's logit lens, 2020).

The stream as it leaves a block goes through the last norm and the head, which the last layer alone was made for. So early
layers speak a language that is not quite theirs, and the last one says exactly what the model said.

Shapes: states (positions, hidden); scores (positions, vocabulary).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.candidates import log_softmax
from glassformer.errors import InputError
from glassformer.observe.attention import place
from glassformer.observe.passes import Floats, Passes, Tell
from glassformer.observe.seen import Seen
from glassformer.text.pieces import shown_bytes

if TYPE_CHECKING:
    from glassformer.show.page import Page

POSITIONS = 12  # that are looked at unless others are named: the last ones
Logs: TypeAlias = npt.NDArray[np.float64]  # log-probabilities, (vocabulary,)


@dataclass(frozen=True)
class Said:
    """What one layer would have said at one position."""

    id: int
    text: str
    probability: float
    rank: int  # of the token that the last layer says: 1 is the first choice
    final: float  # the probability of that token here
    divergence: float  # of what is said here from what is said at the end: Kullback and Leibler's, in nats


@dataclass(frozen=True)
class Lens(Seen):
    SCHEMA = "glassformer.lens/1"

    model: str
    positions: tuple[int, ...]
    tokens: tuple[str, ...]  # those at the positions
    layers: tuple[str, ...]  # 'embedding', then the blocks by number
    said: tuple[tuple[Said, ...], ...]  # by layer, then by position

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.lens import page

        return page(self, everything)

    @property
    def final(self) -> tuple[Said, ...]:
        """What the model said, by position."""
        return self.said[-1]

    def settled(self, at: int = -1) -> str:
        """The layer from which on the answer at a position, by its place in `positions`, does not change."""
        last = self.said[-1][at].id
        settled = len(self.layers) - 1
        while settled > 0 and self.said[settled - 1][at].id == last:
            settled -= 1
        return self.layers[settled]

    def __repr__(self) -> str:
        return f"Lens({len(self.layers)} layers × {len(self.positions)} positions)"


def lens(reading: Passes, positions: Sequence[int | str] | None = None, *, tell: Tell | None = None) -> Lens:
    """What each layer would have said at some positions: the last few, unless others are named."""
    model, texts = reading.model, [token.text for token in reading.tokens]
    if positions is None:
        chosen = list(range(max(0, len(texts) - POSITIONS), len(texts)))
    else:
        chosen = [place(one, texts) for one in ([positions] if isinstance(positions, (int, str)) else positions)]
    if not chosen:
        raise InputError("a lens needs at least one position.")
    model.unembed(np.zeros((0, model.config.hidden_size), np.float32))  # says now if this model scores no tokens
    sites = ["embedding", *(f"blocks.{number}.residual" for number in range(model.blueprint.blocks))]
    states = _states(reading, sites, chosen)
    end = log_softmax(model.unembed(states[-1]))
    best = end.argmax(1)
    said = []
    for number, layer in enumerate(states):
        logs = log_softmax(model.unembed(layer))
        said.append(tuple(_said(reading, *each) for each in zip(logs, end, best.tolist(), strict=True)))
        if tell is not None:
            tell(number + 1, len(states))
    names = ("embedding", *(str(number) for number in range(model.blueprint.blocks)))
    return Lens(model.name, tuple(chosen), tuple(texts[one] for one in chosen), names, tuple(said))


def _states(reading: Passes, sites: Sequence[str], positions: Sequence[int]) -> Floats:
    """The stream at some positions: (sites, positions, hidden)."""
    found = np.zeros((len(sites), len(positions), reading.model.config.hidden_size), np.float32)
    for chunk in reading.chunks(*sites):
        inside = [(at, one - chunk.start) for at, one in enumerate(positions) if 0 <= one - chunk.start < chunk.count]
        for site, value in chunk.sites.items():
            for at, row in inside:
                found[sites.index(site), at] = value[row]
    return found


def _said(reading: Passes, logs: Logs, end: Logs, final: int) -> Said:
    token = int(logs.argmax())
    text = shown_bytes(reading.model.tokenizer.token_bytes(token))
    rank = int(np.count_nonzero(logs > logs[final])) + 1
    divergence = max(0.0, float((np.exp(end) * (end - logs)).sum(dtype=np.float64)))
    return Said(token, text, float(np.exp(logs[token])), rank, float(np.exp(logs[final])), divergence)
