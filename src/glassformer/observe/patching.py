"""Patching: which place inside the model makes one text lead elsewhere than another.

Two texts of as many tokens lead to two answers. The second one is read again and again, each time with one place inside (one
block's value at one position, or one head) taken from the first. Where that brings the first text's answer back, the
difference was carried through that place. A cell says how much came back: 0, the answer is the second text's as before;
1, it is the first one's.

Nothing that stands before the first difference can differ, so the text is read up to there once, and every patch begins at
its own position. All patches of a position go through together.

Shapes: values (rows, columns): a row for each layer, a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np

from glassformer.candidates import log_softmax
from glassformer.engine.protocol import Feed, Row, Want, alike
from glassformer.errors import InputError, SettingError, nearest
from glassformer.observe.activations import Activations
from glassformer.observe.attribution import scored_token, spelt
from glassformer.observe.protocols import Floats
from glassformer.progress import Progress
from glassformer.sites import ENCODER, Change, Watch
from glassformer.views.patching import AnswerToken, PatchedPart, Patching
from glassformer.views.tokens import find_token

SITES: dict[str, str] = {
    "residual": "blocks.{}.residual",
    "attention": "blocks.{}.attention.update",
    "mlp": "blocks.{}.mlp.update",
    "heads": "blocks.{}.attention.heads",
    "query": "blocks.{}.attention.query",
    "key": "blocks.{}.attention.key",
    "value": "blocks.{}.attention.value",
    "pattern": "blocks.{}.attention.pattern",
}
BY_HEAD = frozenset({"heads", "query", "key", "value", "pattern"})
TOGETHER = 2048  # tokens of the patches that go through in one pass, about
LIKELY = 10  # tokens of each text
MOST = 1_000_000  # tokens that all patches read


def patching(
    first: Activations, second: Activations, part: PatchedPart = "residual", positions: Sequence[int | str] | int | None = None, *,
    answer: int | str | None = None, against: int | str | None = None, progress: Progress | None = None,
) -> Patching:  # fmt: skip
    """Put the first text's values into the second one's pass, place by place, and see what brings its answer back.

    `part`: 'residual' (the stream after each block), 'attention' or 'mlp' (what each adds to it); or, head by head and at
    all positions, 'heads' (what each gives), its 'query', 'key' or 'value', or its 'pattern' (where it looks). `positions`:
    where, by number or by the second text's tokens; everywhere it could matter, unless they are named. `answer` and
    `against`: the two tokens to tell apart, instead of what each text leads to.
    """
    if part not in SITES:
        raise SettingError(
            f"there is no part {part!r} to patch.{nearest(part, SITES)} Parts: {', '.join(get_args(PatchedPart))}."
        )
    pair = Pair(first, second, positions)
    ends = [pair.scores(side) for side in (first, second)]
    model = first.model
    wanted, other = scored_token(model, answer, ends[0]), scored_token(model, against, ends[1])
    answers = [AnswerToken(one, spelt(model, one)) for one in (wanted, other)]
    if wanted == other:
        both = "are both told to lead" if answer is not None and against is not None else "both lead"
        moved = " and ".join(repr(spelt(model, one)) for one in _moved(*ends))
        raise InputError(
            f"the texts {both} to {answers[0].text!r}. Name two tokens to tell them apart: {moved} differ most."
        )
    clean, dirty = (float(scores[wanted] - scores[other]) for scores in ends)
    if clean == dirty:
        raise InputError(
            f"after both texts {answers[0].text!r} stands to {answers[1].text!r} alike, so nothing can be told."
        )
    patches = pair.patches(part)
    columns = len({patch.column for patch in patches})
    layers = tuple(dict.fromkeys(patch.layer for patch in patches))
    values = np.zeros((len(layers), columns))
    for done, (patch, scores) in enumerate(pair.patched(patches), 1):
        values[layers.index(patch.layer), patch.column] = (float(scores[wanted] - scores[other]) - dirty) / (clean - dirty)
        if progress is not None:
            progress(done, len(patches))
    return Patching(
        model.name,
        part,
        (_told(first), _told(second)),
        (pair.spelt(first), pair.spelt(second)),
        (answers[0], answers[1]),
        (clean, dirty),
        layers,
        tuple(pair.positions),
        columns if part in BY_HEAD else 0,
        pair.heads // columns if part in ("key", "value") else 1,
        tuple(tuple(map(float, row)) for row in values),
        (int(ends[0].argmax()), int(ends[1].argmax())),
        tuple(model.changes),
    )


@dataclass(frozen=True)
class Patch:
    layer: str
    column: int
    start: int  # the first position that it changes
    site: str
    change: Change


class Pair:
    """Two texts of as many tokens, on the side where they differ: what an encoder reads, or what the model goes on from."""

    def __init__(self, first: Activations, second: Activations, positions: Sequence[int | str] | int | None) -> None:
        model = first.model
        if not (model.writes or model.head == "masked"):
            raise InputError(f"{model.name} scores no tokens, so there is no answer that a patch could bring back.")
        self.first, self.second = first, second
        self.sourced = first.source is not None
        if self.sourced and first.ids != second.ids:
            raise InputError("the two targets differ. Patch two texts that an encoder reads, before the same target.")
        one, other = self.ids(first), self.ids(second)
        if len(one) != len(other):
            raise InputError(
                f"the texts have {len(one)} and {len(other)} tokens. Patching goes place by place: let one word "
                "stand for another of as many tokens (glass tokens shows them)."
            )
        if one == other:
            raise InputError("the two texts are the same, so there is nothing to carry over.")
        self.causal = model.writes and not self.sourced
        self.positions = list(range(alike(one, other) if self.causal else 0, len(one)))
        if positions is not None:
            named = [positions] if isinstance(positions, (int, str)) else positions
            if not named:
                raise InputError("name at least one position to patch, or leave positions out for all.")
            self.positions = sorted({self._place(position) for position in named})
            if self.causal and max(self.positions) < (parted := alike(one, other)):
                raise InputError(
                    f"the texts are the same up to position {parted}, so nothing before it can carry a difference."
                )
        self.mask = None if model.writes else self._mask()

    def ids(self, side: Activations) -> tuple[int, ...]:
        return side.source or () if self.sourced else side.ids

    def spelt(self, side: Activations) -> tuple[str, ...]:
        return tuple(token.text for token in (side.source_tokens if self.sourced else side.tokens))

    @property
    def heads(self) -> int:
        prefix = ENCODER if self.sourced else ""
        return int(self.first.shape(prefix + SITES["query"].format(0))[0])

    def _place(self, position: int | str) -> int:
        """A position, by number or by a token of either text."""
        first, second = (self.spelt(side) for side in (self.first, self.second))
        with suppress(InputError):
            return find_token(position, second)
        return find_token(position, first)

    def _mask(self) -> int:
        mask = self.first.model.tokenizer.mask_token_id
        places = [[at for at, token in enumerate(side.ids) if token == mask] for side in (self.first, self.second)]
        if len(places[0]) != 1 or places[0] != places[1]:
            name = self.first.model.tokenizer.mask_token
            raise InputError(f"{self.first.model.name} fills gaps: put one {name} into both texts, at the same place.")
        return places[0][0]

    # Values and scores ------------------------------------------------------------------------------------------

    def patches(self, part: PatchedPart) -> list[Patch]:
        """Every place, position by position, with what lies there in the first text."""
        blueprint, prefix = self.first.model.blueprint, ENCODER if self.sourced else ""
        blocks = blueprint.encoder if self.sourced else blueprint.blocks
        sites = {str(number): prefix + SITES[part].format(number) for number in range(blocks)}
        if part == "residual":
            sites = {"embedding": f"{prefix}embedding", **sites}
        self._check_size(len(sites), part)
        values = {site: np.zeros(self.first.shape(site), np.float32) for site in sites.values()}
        for chunk in self.first.chunks(*values):
            for site in chunk.sites:
                self.first.put(values[site], site, chunk)
        spots = self.positions
        if part in BY_HEAD:
            return [
                Patch(layer, head, min(spots), site, Change(0.0, value[None, spots], spots, [head]))
                for layer, site in sites.items()
                for head, value in enumerate(values[site])
            ]
        return [
            Patch(layer, column, position, site, Change(0.0, values[site][position], [position]))
            for column, position in enumerate(spots)
            for layer, site in sites.items()
        ]

    def _check_size(self, layers: int, part: PatchedPart) -> None:
        """Refuse what would take hours, before anything runs."""
        length = len(self.ids(self.second))
        starts = [min(self.positions)] * self.heads if part in BY_HEAD else self.positions
        tokens = layers * sum(length - start if self.causal else length for start in starts)
        if tokens > MOST:
            raise InputError(
                f"patching {len(starts)} × {layers} places of this text reads {tokens:,} tokens. Name a few positions."
            )

    def scores(self, side: Activations) -> Floats:
        """What a side's text leads to, unchanged."""
        if self.mask is not None:
            return self._filled(side.ids, Watch())
        return self._ran([side.model.executor.open(side.source)], side.ids, [None])[0]

    def patched(self, patches: Sequence[Patch]) -> Iterator[tuple[Patch, Floats]]:
        """The second text's scores under each patch."""
        if self.mask is not None:
            for patch in patches:
                yield patch, self._filled(self.second.ids, _watch(patch))
            return
        executor, ids = self.second.model.executor, self.second.ids
        base = executor.open(self.second.source)
        size = max(1, TOGETHER // len(self.ids(self.second)))
        try:
            if self.causal and (read := ids[: max(patch.start for patch in patches)]):
                executor.run([Feed(base, read, Want.NONE)])
            for start in dict.fromkeys(patch.start for patch in patches):
                here = [patch for patch in patches if patch.start == start]
                for at in range(0, len(here), size):
                    some = here[at : at + size]
                    if self.causal:
                        rows, rest = [executor.fork(base, start) for _ in some], ids[start:]
                    else:
                        rows, rest = [executor.open(self.second.source) for _ in some], ids
                    yield from zip(some, self._ran(rows, rest, [_watch(patch) for patch in some]), strict=True)
        finally:
            executor.close(base)

    def _ran(self, rows: Sequence[Row], ids: Sequence[int], watches: Sequence[Watch | None]) -> list[Floats]:
        """What rows say after some more tokens, each under its own watch; they are closed."""
        executor = self.first.model.executor
        try:
            found = executor.run([Feed(row, ids, watch=watch) for row, watch in zip(rows, watches, strict=True)])
            return [scores.host().copy() for scores in found]
        finally:
            for row in rows:
                executor.close(row)

    def _filled(self, ids: Sequence[int], watch: Watch) -> Floats:
        scores, _ = self.first.model.encoder_pass(ids, watch)
        assert scores is not None
        assert self.mask is not None
        found: Floats = scores[self.mask]
        return found


def _moved(first: Floats, second: Floats) -> tuple[int, int]:
    """Of the tokens that either text makes likely, the one that gains most by the first, and the one that loses most."""
    one, other = log_softmax(first), log_softmax(second)
    likely = np.union1d(np.argsort(one)[-LIKELY:], np.argsort(other)[-LIKELY:])
    gap = (one - other)[likely]
    return int(likely[gap.argmax()]), int(likely[gap.argmin()])


def _watch(patch: Patch) -> Watch:
    return Watch(changes={patch.site: patch.change})


def _told(side: Activations) -> str:
    return str(side.model.tokenizer.decode(side.ids if side.source is None else side.source))
