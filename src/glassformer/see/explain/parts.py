"""What carries a word's difference to the last token: parts of one text put into the pass of the other.

Shapes: logits (vocabulary,); values (heads, 1, head_size) or (1, hidden).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from glassformer.engine.protocol import BlockInput
from glassformer.ground.changes import Change
from glassformer.ground.sites import Watch
from glassformer.see.explain.explanation import Carried, Check, PartEffect, WordEffect
from glassformer.see.explain.question import Lead, Question
from glassformer.see.explain.texts import ReadWhole, read_again
from glassformer.see.explain.words import Word, exchanged
from glassformer.see.lens import shipped_lens
from glassformer.see.patching.pair import PatchedRun, ReadPair, TextPair, align, entry_sites, read_pairs
from glassformer.see.patching.view import AnswerToken
from glassformer.see.view import Floats

ENOUGH = 0.9  # of the lead's way back
LITTLE = 0.02  # of it: a part that adds less to those before it is left out
MIXERS = ("attention", "recurrent", "cross")  # how sites of heads begin
LENS_BLOCKS = 8  # that the lens reads at a time, from the last one backwards
Name = TypeVar("Name", bound=Hashable)


class Part(NamedTuple):
    """What takes something to the last token."""

    block: int
    head: int | None  # None: the MLP, or the convolution
    mixer: str = "attention"  # how its sites begin, if it is a head
    convolution: bool = False  # which some blocks have in attention's place, without heads

    @property
    def site(self) -> str:
        if self.head is None:
            return f"blocks.{self.block}.{'attention' if self.convolution else 'mlp'}.update"
        return f"blocks.{self.block}.{self.mixer}.heads"


def carried_by(question: Question, word: Word, effect: WordEffect) -> tuple[Carried, tuple[Check, ...]] | None:
    """What brings the word's difference to the last token: parts of one text put into the pass of the other.

    Nothing in models of several streams, where what parts write is corrected by what other streams have.
    """
    reading, model = question.reading, question.reading.model
    best = effect.best_exchange
    causal = model.writes and reading.source is None
    several = model.blueprint.mixes_streams
    if several or best is None or best.change >= 0 or (causal and question.position in word.positions):
        return None
    if not question.lead.alone and best.answer_id != question.token:
        question = replace(question, lead=Lead(question.token, best.answer_id, alone=True))
    ids = exchanged(question.ids, {word: best.id}, model.tokenizer)
    kinds = (*(f"{mixer}.heads" for mixer in MIXERS), "attention.update", "mlp.update", "residual")
    sites = [f"blocks.{block}.{kind}" for block in range(model.blueprint.blocks) for kind in kinds]
    sites = [site for site in sites if site in model.blueprint.sites]
    with _read_both(question, word, ids, sites) as read:
        if read is None:
            return None
        search = PartSearch(question, read)
        parts = search.best_parts()
        taken = search.lead_without([part.place for part in parts]) if parts and question.effort.checks else math.nan
    attention = search.attention(word, parts)
    rival = AnswerToken(question.lead.against, question.text.answer(question.lead.against))
    carried = Carried(
        word.text, best.text, best.answer, rival, search.here, search.there,
        tuple(
            PartEffect(
                part.place.block, part.place.head, part.restored, part.together, attention.get(part.place),
                part.place.mixer == "cross", part.place.convolution, part.place.mixer == "recurrent",
            )
            for part in parts
        ),
        search.settled, search.seen_by_lens if question.effort.checks else None,
        question.text.places_name,
    )  # fmt: skip
    if not parts or not question.effort.checks:
        return carried, ()
    names = "the named parts" if len(parts) > 1 else carried.parts[0].name
    put = search.there + parts[-1].together * (search.here - search.there)
    checks = (
        Check(f"with “{best.text}”, but {names} as in the text, the answer is ahead", put, put > 0),
        Check(f"in the text, but {names} as with “{best.text}”, the lead is at most half", taken, taken <= search.here / 2),
    )
    return carried, checks


@contextmanager
def _read_both(
    question: Question, word: Word, ids: tuple[int, ...], sites: Sequence[str]
) -> Iterator[ReadPair | ReadCounterpart | None]:
    """A text and the one with a word exchanged; None where the first one's values cannot be put anywhere."""
    text, reading = question.text, question.reading
    if isinstance(text, ReadWhole):
        chosen = text.places(question.lead.against) or range(len(text.ids))
        aligned = {origin: place for place, origin in align(text.ids, ids).items()}
        origins = [origin for origin in chosen if origin in aligned and origin not in word.positions]
        yield ReadCounterpart(text, ids, sites, origins, [aligned[origin] for origin in origins]) if origins else None
        return
    first = replace(reading, ids=reading.ids[: question.position + 1])
    second = replace(first, ids=ids) if reading.source is None else replace(first, source=ids)
    with read_pairs([TextPair(first, second, -1 if reading.source is None else None, aligned=True)], sites) as (read,):
        yield read


class ReadCounterpart:
    """A text that an encoder read whole, and the same with a word exchanged: both once, and the second under patches."""

    second = None  # each patch reads it anew, from the block on in which it begins

    def __init__(
        self, text: ReadWhole, ids: Sequence[int], sites: Sequence[str], origins: Sequence[int], places: Sequence[int]
    ) -> None:
        """`origins`, `places`: the positions of the first text's values, and where they are put in the second."""
        self.text, self.ids, self.origins, self.places = text, ids, list(origins), list(places)
        self.other = text.counterpart(ids)
        self.values = text.reading.values(*sites)
        self.scores = text.logits(text.position), text.readout(text.scored(ids)[0], ids)
        entries = entry_sites(self.other)
        values = self.other.values(*entries.values()) if entries else {}
        self.entering = {block: BlockInput(block, values[site]) for block, site in entries.items()}

    def patched(self, runs: Sequence[PatchedRun[Name]]) -> Iterator[tuple[Name, Floats, Mapping[str, Floats]]]:
        """The second text's logits under each patch, and what its watch reads."""
        for run in runs:
            scores, sites = self.text.scored(self.ids, run.watch, self.entering.get(run.block))
            yield run.place, self.text.readout(scores, self.ids), sites


@dataclass(frozen=True)
class FoundPart:
    place: Part
    restored: float
    together: float


@dataclass
class PartSearch:
    """The second text of a pair, with parts of the first one's last token put into it."""

    question: Question
    read: ReadPair | ReadCounterpart

    def __post_init__(self) -> None:
        self.blocks = self.question.reading.model.blueprint.blocks
        if isinstance(self.read, ReadCounterpart):
            self.origins, self.lasts, self.other = self.read.origins, self.read.places, self.read.other
        else:
            pair = self.read.pair  # an encoder's gap, or the last token
            origin, last = pair.masks or (len(pair.first.ids) - 1, len(pair.second.ids) - 1)
            self.origins, self.lasts, self.other = [origin], [last], pair.second
        self.here, self.there = map(self.question.lead.of, self.read.scores)

    def restored(self, lead: float) -> float:
        return (lead - self.there) / (self.here - self.there) if self.here != self.there else 0.0

    def best_parts(self) -> list[FoundPart]:
        """The parts that restore most, each alone; then together, until that is enough."""
        alone = dict(self._restored_by({place: [place] for place in self.places()}))
        order = [place for place in sorted(alone, key=lambda place: -alone[place]) if alone[place] > 0][
            : self.question.effort.parts
        ]
        together = self._together(order)
        added = [after - before for before, after in zip([0.0, *together], together, strict=False)]
        if min(added, default=1.0) < LITTLE:
            order = [place for place, more in zip(order, added, strict=True) if more >= LITTLE]
            together = self._together(order)
        count = next((count for count, share in enumerate(together, 1) if share >= ENOUGH), len(order))
        return [FoundPart(place, alone[place], share) for place, share in list(zip(order, together, strict=True))[:count]]

    def _together(self, order: Sequence[Part]) -> list[float]:
        """What the first part restores, the first two, and so on."""
        return [share for _, share in self._restored_by({count: order[:count] for count in range(1, len(order) + 1)})]

    def places(self) -> list[Part]:
        """The heads, convolutions and MLPs of the blocks in which most of the lead comes back."""
        values, shares = self.read.values, self.arrived
        gains = {block: share - shares.get(block - 1, 0.0) for block, share in shares.items()}
        blocks = sorted(sorted(gains, key=lambda block: -gains[block])[: self.question.effort.blocks])
        heads = [
            Part(block, head, mixer)
            for block in blocks
            for mixer in MIXERS
            for head in range(len(values.get(f"blocks.{block}.{mixer}.heads", ())))
        ]
        whole = (Part(block, None, convolution=convolution) for block in blocks for convolution in (True, False))
        with_heads = {head.block for head in heads if head.mixer == "attention"}
        return [*heads, *(one for one in whole if one.site in values and not (one.convolution and one.block in with_heads))]

    @cached_property
    def arrived(self) -> dict[int, float]:
        """What the last token's stream restores as it leaves each block."""
        sites = {block: f"blocks.{block}.residual" for block in range(self.blocks)}
        runs = [
            PatchedRun(block, Watch(changes={site: self._change(site)}), self.lasts[0], block)
            for block, site in sites.items()
        ]
        return {block: self.restored(self.question.lead.of(scores)) for block, scores, _ in self.read.patched(runs)}

    @property
    def settled(self) -> int | None:
        """The block from which on the last token's stream alone brings the answer."""
        late = self.blocks
        while late and self.arrived[late - 1] >= ENOUGH:
            late -= 1
        return late if late < self.blocks else None

    @cached_property
    def seen_by_lens(self) -> int | None:
        """The block from which on the lens, the tuned one if there is one, reads the answer off the last token's stream."""
        model, late = self.question.reading.model, self.blocks
        if not (model.writes or model.head == "masked"):
            return None
        tuned = shipped_lens(model)
        while late:
            blocks = range(max(0, late - LENS_BLOCKS), late)
            states = np.stack([self.read.values[f"blocks.{block}.residual"][self.origins[0]] for block in blocks])
            if tuned is not None:
                states = np.stack([tuned.translate(str(block), row) for block, row in zip(blocks, states, strict=True)])
            for logits in model.unembed(states)[::-1]:
                if int(logits.argmax()) != self.question.token:
                    return late if late < self.blocks else None
                late -= 1
        return 0

    def lead_with(self, places: Sequence[Part]) -> float:
        """The lead in the second text with some parts as in the first."""
        return next((lead for _, lead in self._leads({0: places})), self.there) if places else self.there

    def lead_without(self, places: Sequence[Part]) -> float:
        """The lead in the first text with some parts as in the second."""
        second, sites = self.read.second, frozenset(place.site for place in places)
        if second is not None:
            _, values = read_again(second.executor, second.row, second.ids, self.lasts[0], Watch(sites))
        else:
            values = self.other.values_at(self.lasts, *sites)
        return self.question.lead.of(self._at_end(self._watch(places, values, self.origins, range(len(self.lasts))))[0])

    def _at_end(self, watch: Watch) -> tuple[Floats, dict[str, Floats]]:
        """The first text's last token again, or all of an encoder's."""
        text = self.question.text
        if isinstance(text, ReadWhole):
            scores, sites = text.scored(text.ids, watch)
            return text.readout(scores, text.ids), sites
        return read_again(text.executor, text.row, text.ids, self.question.position, watch)

    def attention(self, word: Word, parts: Sequence[FoundPart]) -> dict[Part, float]:
        """What each head gave to the word."""
        in_source = self.question.reading.source is not None
        places = [part.place for part in parts if part.place.head is not None and (part.place.mixer == "cross") == in_source]
        sites = {place: place.site.replace(".heads", ".pattern") for place in places}
        sites = {place: site for place, site in sites.items() if site in self.question.reading.model.blueprint.sites}
        if not sites:
            return {}
        _, patterns = self._at_end(Watch(frozenset(sites.values())))
        rows = [0] if self.question.reading.model.writes else self.origins
        weights = {place: patterns[site][place.head][np.ix_(rows, word.positions)] for place, site in sites.items()}
        return {place: float(given.sum(-1).mean()) for place, given in weights.items()}

    def _restored_by(self, sets: Mapping[Name, Sequence[Part]]) -> Iterator[tuple[Name, float]]:
        return ((name, self.restored(lead)) for name, lead in self._leads(sets))

    def _leads(self, sets: Mapping[Name, Sequence[Part]]) -> Iterator[tuple[Name, float]]:
        runs = [
            PatchedRun(
                name,
                self._watch(places, self.read.values, self.lasts, self.origins),
                self.lasts[0],
                min(place.block for place in places),
            )
            for name, places in sets.items()
        ]
        return ((name, self.question.lead.of(scores)) for name, scores, _ in self.read.patched(runs))

    def _watch(
        self, parts: Sequence[Part], values: Mapping[str, Floats], places: Sequence[int], origins: Sequence[int]
    ) -> Watch:
        """Some parts' values at places of one text, put into places of the other's pass."""
        at, origin = list(places), list(origins)
        heads: dict[str, list[int]] = {}
        changes: dict[str, Change] = {}
        for part in parts:
            if part.head is None:
                changes[part.site] = Change(0.0, values[part.site][origin], at)
            else:
                heads.setdefault(part.site, []).append(part.head)
        for site, chosen in heads.items():
            changes[site] = Change(0.0, values[site][chosen][:, origin], at, chosen)
        return Watch(changes=changes)

    def _change(self, site: str) -> Change:
        return Change(0.0, self.read.values[site][self.origins], self.lasts)
