"""Activation patching: which place inside the model makes one text lead elsewhere than another.

Two texts of equal length lead to two answers. The second one is read again and again, each time with one value inside (one
block's at one position, or one head's) taken from the first. Where that restores the first text's answer, the difference was
carried through that place. A cell says how much of the answer's lead is restored: 0, none; 1, all of it.

Nothing that stands before the first difference can differ, nor can anything in the blocks before a patch: so the text is
read once, and every patch begins at its own position and block, with what entered it there. All patches of a position go
through together.

Shapes: values (rows, columns): a row for each layer, a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np

from glassformer.candidates import log_softmax
from glassformer.changes import Change
from glassformer.engine.protocol import BlockInput, Feed, Want, begins_at_blocks, common_prefix
from glassformer.errors import InputError, InputTypeError, SettingError, did_you_mean
from glassformer.observe.activations import Activations, to_numpy
from glassformer.observe.attribution import resolve_token_id
from glassformer.observe.protocols import Floats
from glassformer.observe.tokens import token_text
from glassformer.progress import Progress
from glassformer.sites import ENCODER, Watch
from glassformer.typecheck import brief
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
BATCH_TOKENS = 2048  # of the patches that go through in one pass, about
LIKELY = 10  # tokens of each text among which a better pair is looked for
MAX_TOKENS = 1_000_000  # that all patches read


def patching(
    first: Activations,
    second: Activations,
    part: PatchedPart = "residual",
    positions: Sequence[int | str] | int | None = None,
    *,
    answer: int | str | None = None,
    against: int | str | None = None,
    progress: Progress | None = None,
) -> Patching:
    """Put the first text's values into the second one's pass, place by place, and see what restores its answer.

    `part`: 'residual' (the stream after each block), 'attention' or 'mlp' (what each adds to it); or, head by head and at
    all positions, 'heads' (each one's output), its 'query', 'key' or 'value', or its 'pattern' (where it looks).
    `positions`: by number or by a token of either text; by default all where a patch could matter. `answer` and `against`:
    the two tokens to tell apart, instead of what each text leads to.
    """
    if not isinstance(part, str):
        raise InputTypeError(f"part is {brief(part)}; it must be one of {', '.join(map(repr, get_args(PatchedPart)))}.")
    if part not in SITES:
        raise SettingError(
            f"there is no part {part!r} to patch.{did_you_mean(part, SITES)} Parts: {', '.join(get_args(PatchedPart))}."
        )
    pair = TextPair(first, second, positions)
    unpatched = [pair.scores(text) for text in (first, second)]
    model, tokenizer = first.model, first.model.tokenizer
    target, rival = resolve_token_id(model, answer, unpatched[0]), resolve_token_id(model, against, unpatched[1])
    answers = [AnswerToken(token, token_text(tokenizer, token)) for token in (target, rival)]
    if target == rival:
        both = "are both to lead" if answer is not None and against is not None else "both lead"
        better = " and ".join(repr(token_text(tokenizer, token)) for token in _most_different(*unpatched))
        raise InputError(
            f"the texts {both} to {answers[0].text!r}. Name two tokens to tell them apart: {better} differ most."
        )
    clean, corrupted = (float(scores[target] - scores[rival]) for scores in unpatched)
    if clean == corrupted:
        raise InputError(
            f"{answers[0].text!r} has the same lead over {answers[1].text!r} after both texts, so no patch can change it."
        )
    patches = pair.patches(part)
    columns = len({patch.column for patch in patches})
    layers = tuple(dict.fromkeys(patch.layer for patch in patches))
    values = np.zeros((len(layers), columns))
    for done, (patch, scores) in enumerate(pair.patched(patches), 1):
        lead = float(scores[target] - scores[rival])
        values[layers.index(patch.layer), patch.column] = (lead - corrupted) / (clean - corrupted)
        if progress is not None:
            progress(done, len(patches))
    return Patching(
        model.name,
        part,
        (pair.text(first), pair.text(second)),
        (pair.token_texts(first), pair.token_texts(second)),
        (answers[0], answers[1]),
        (clean, corrupted),
        layers,
        tuple(pair.positions),
        columns if part in BY_HEAD else 0,
        pair.heads // columns if part in ("key", "value") else 1,
        tuple(tuple(map(float, row)) for row in values),
        (int(unpatched[0].argmax()), int(unpatched[1].argmax())),
        tuple(model.changes),
    )


@dataclass(frozen=True)
class Patch:
    layer: str
    column: int
    start: int  # the first position that it changes
    site: str
    change: Change

    @property
    def watch(self) -> Watch:
        return Watch(changes={self.site: self.change})

    @property
    def block(self) -> int:
        """The first block that it changes anything in."""
        return int(self.layer) if self.layer.isdecimal() else 0


class UnpatchedText:
    """A text that was read once, without a patch, and what entered each block: patches begin there."""

    def __init__(self, text: Activations, starts: Sequence[int]) -> None:
        self.ids, self.executor = text.ids, text.model.executor
        self.first = min(starts)
        self.states: dict[int, Floats] = {}  # by block: (tokens from the first start on, hidden)
        self.row = self.executor.open(text.source)
        try:
            if self.first:
                self.executor.run([Feed(self.row, self.ids[: self.first], Want.NONE)])
            if begins_at_blocks(self.executor):
                entries = {block: f"blocks.{block - 1}.residual" for block in range(1, text.model.blueprint.blocks)}
                watch = Watch(frozenset(entries.values()))
                (output,) = self.executor.run([Feed(self.row, self.ids[self.first :], Want.NONE, watch=watch)])
                self.states = {block: to_numpy(output.sites[site])[0] for block, site in entries.items()}
            elif rest := self.ids[self.first : max(starts)]:
                self.executor.run([Feed(self.row, rest, Want.NONE)])
        except BaseException:
            self.executor.close(self.row)
            raise

    def feed(self, patch: Patch) -> Feed:
        """What a patch changes of the text, in a row of its own."""
        ids = self.ids[patch.start :]
        if patch.block not in self.states:
            return Feed(self.executor.fork(self.row, patch.start), ids, watch=patch.watch)
        states = self.states[patch.block][patch.start - self.first :]
        return Feed(self.executor.fork(self.row), ids, watch=patch.watch, begin=BlockInput(patch.block, states))


class TextPair:
    """Two texts of equal length, in the stack that reads them: an encoder-decoder's encoder, or the model's only one."""

    def __init__(self, first: Activations, second: Activations, positions: Sequence[int | str] | int | None) -> None:
        model = first.model
        if not (model.writes or model.head == "masked"):
            raise InputError(f"{model.name} scores no tokens, so there is no answer that a patch could restore.")
        self.first, self.second = first, second
        self.in_encoder = first.source is not None
        if self.in_encoder and first.ids != second.ids:
            raise InputError("the two targets differ. Patch two texts that an encoder reads, before the same target.")
        ids, other_ids = self.ids(first), self.ids(second)
        if len(ids) != len(other_ids):
            raise InputError(
                f"the texts have {len(ids)} and {len(other_ids)} tokens. Patching goes place by place: replace a word by "
                "one of as many tokens (glass tokens shows them)."
            )
        if ids == other_ids:
            raise InputError("the two texts are the same, so there is nothing to carry over.")
        self.causal = model.writes and not self.in_encoder
        shared = common_prefix(ids, other_ids) if self.causal else 0  # where nothing can differ
        self.positions = list(range(shared, len(ids)))
        if positions is not None:
            named = [positions] if isinstance(positions, (int, str)) else positions
            if not named:
                raise InputError("name at least one position to patch, or leave positions out for all.")
            self.positions = sorted({self._position(position) for position in named})
            if max(self.positions) < shared:
                raise InputError(
                    f"the texts are the same up to position {shared}, so nothing before it can carry a difference."
                )
        self.mask = None if model.writes else self._mask_position()

    def ids(self, text: Activations) -> tuple[int, ...]:
        return text.source or () if self.in_encoder else text.ids

    def text(self, text: Activations) -> str:
        return str(text.model.tokenizer.decode(self.ids(text)))

    def token_texts(self, text: Activations) -> tuple[str, ...]:
        return tuple(token.text for token in (text.source_tokens if self.in_encoder else text.tokens))

    @property
    def heads(self) -> int:
        return int(self.first.shape(self._site("query", 0))[0])

    def _site(self, part: str, block: int) -> str:
        return (ENCODER if self.in_encoder else "") + SITES[part].format(block)

    def _position(self, position: int | str) -> int:
        """A position, by number or by a token of either text."""
        with suppress(InputError):
            return find_token(position, self.token_texts(self.second))
        return find_token(position, self.token_texts(self.first))

    def _mask_position(self) -> int:
        tokenizer = self.first.model.tokenizer
        positions = [
            [at for at, token in enumerate(text.ids) if token == tokenizer.mask_token_id]
            for text in (self.first, self.second)
        ]
        if len(positions[0]) != 1 or positions[0] != positions[1]:
            raise InputError(
                f"{self.first.model.name} fills gaps: put one {tokenizer.mask_token} into both texts, at the same place."
            )
        return positions[0][0]

    # Values and scores ------------------------------------------------------------------------------------------

    def patches(self, part: PatchedPart) -> list[Patch]:
        """Every place, position by position, with its value in the first text."""
        blueprint, positions = self.first.model.blueprint, self.positions
        blocks = blueprint.encoder_blocks if self.in_encoder else blueprint.blocks
        sites = {str(number): self._site(part, number) for number in range(blocks)}
        if part == "residual":
            sites = {"embedding": (ENCODER if self.in_encoder else "") + "embedding", **sites}
        self._check_size(len(sites), part)
        values = self.first.values(*sites.values())
        if part in BY_HEAD:
            return [
                Patch(layer, head, min(positions), site, Change(0.0, value[None, positions], positions, [head]))
                for layer, site in sites.items()
                for head, value in enumerate(values[site])
            ]
        return [
            Patch(layer, column, position, site, Change(0.0, values[site][position], [position]))
            for column, position in enumerate(positions)
            for layer, site in sites.items()
        ]

    def _check_size(self, layers: int, part: PatchedPart) -> None:
        """Refuse what would take hours, before anything runs."""
        length = len(self.ids(self.second))
        starts = [min(self.positions)] * self.heads if part in BY_HEAD else self.positions
        tokens = layers * sum(length - start if self.causal else length for start in starts)
        if tokens > MAX_TOKENS:
            raise InputError(
                f"patching {len(starts)} × {layers} places of this text reads {tokens:,} tokens. Name a few positions."
            )

    def scores(self, text: Activations) -> Floats:
        """Of what follows a text, or fills its mask, without a patch."""
        if self.mask is not None:
            return self._mask_scores(text.ids, Watch())
        return self._next_scores([Feed(text.model.executor.open(text.source), text.ids)])[0]

    def patched(self, patches: Sequence[Patch]) -> Iterator[tuple[Patch, Floats]]:
        """The second text's scores under each patch."""
        if self.mask is not None:
            for patch in patches:
                yield patch, self._mask_scores(self.second.ids, patch.watch)
            return
        executor = self.second.model.executor
        size = max(1, BATCH_TOKENS // len(self.ids(self.second)))
        unpatched = UnpatchedText(self.second, [patch.start for patch in patches]) if self.causal else None
        try:
            for start in dict.fromkeys(patch.start for patch in patches):
                here = [patch for patch in patches if patch.start == start]
                for at in range(0, len(here), size):
                    batch = here[at : at + size]
                    if unpatched is not None:
                        feeds = [unpatched.feed(patch) for patch in batch]
                    else:
                        feeds = [
                            Feed(executor.open(self.second.source), self.second.ids, watch=patch.watch) for patch in batch
                        ]
                    yield from zip(batch, self._next_scores(feeds), strict=True)
        finally:
            if unpatched is not None:
                executor.close(unpatched.row)

    def _next_scores(self, feeds: Sequence[Feed]) -> list[Floats]:
        """The scores after each feed; closes its row."""
        executor = self.first.model.executor
        try:
            return [scores.host().copy() for scores in executor.run(feeds)]
        finally:
            for feed in feeds:
                executor.close(feed.row)

    def _mask_scores(self, ids: Sequence[int], watch: Watch) -> Floats:
        scores, _ = self.first.model.encoder_pass(ids, watch)
        assert scores is not None
        assert self.mask is not None
        mask_scores: Floats = scores[self.mask]
        return mask_scores


def _most_different(first: Floats, second: Floats) -> tuple[int, int]:
    """Of the tokens that either text makes likely, the one that gains most by the first, and the one that loses most."""
    logs, other = log_softmax(first), log_softmax(second)
    likely = np.union1d(np.argsort(logs)[-LIKELY:], np.argsort(other)[-LIKELY:])
    gap = (logs - other)[likely]
    return int(likely[gap.argmax()]), int(likely[gap.argmin()])
