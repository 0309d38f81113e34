"""Two texts, and patches of one's values into the other's forward pass: what every kind of patching is made of.

Nothing that stands before the first difference can differ, nor can anything in the blocks before a patch: so the text is
read once, and every patch begins at its own position and block, with what entered it there. All patches of a position go
through together.

Texts of as many tokens are put side by side, position by position. Others are aligned by what they have in common; a
position without a counterpart is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeVar, get_args

from glassformer.engine.protocol import BlockInput, Feed, common_prefix
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, InputTypeError, SettingError, did_you_mean, spell
from glassformer.ground.sites import ENCODER, Watch
from glassformer.ground.typecheck import brief
from glassformer.observe.activations import Activations, to_numpy
from glassformer.observe.protocols import Floats
from glassformer.observe.unpatched_text import PatchedRun, UnpatchedText, entry_sites, read_unpatched
from glassformer.views.patching import PatchedPart
from glassformer.views.tokens import find_token

RunType = TypeVar("RunType", bound=PatchedRun)
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
MAX_TOKENS = 1_000_000  # that all patches read


def check_part(part: PatchedPart) -> None:
    if not isinstance(part, str):
        raise InputTypeError(f"part is {brief(part)}; it must be one of {', '.join(map(repr, get_args(PatchedPart)))}.")
    if part not in SITES:
        raise SettingError(
            f"there is no part {part!r} to patch.{did_you_mean(part, SITES)} Parts: {', '.join(get_args(PatchedPart))}."
        )


def align(first: Sequence[int], second: Sequence[int]) -> dict[int, int]:
    """Which position of the first text stands for each position of the second.

    Texts of as many tokens are aligned one to one. Otherwise what both have in common is; and of two different spans
    between, the last tokens, as many as both have: a word's last token is where a model has read all of it.

    >>> align([5, 6, 7, 8], [5, 9, 9, 9, 8])
    {0: 0, 2: 1, 3: 2, 4: 3}
    """
    if len(first) == len(second):
        return {position: position for position in range(len(second))}
    aligned: dict[int, int] = {}
    for _, start, end, other_start, other_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        count = min(end - start, other_end - other_start)
        aligned |= zip(range(other_end - count, other_end), range(end - count, end), strict=True)
    return aligned


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


class TextPair:
    """Two texts, in the stack that reads them: an encoder-decoder's encoder, or the model's only one."""

    def __init__(
        self,
        first: Activations,
        second: Activations,
        positions: Sequence[int | str] | int | None = None,
        *,
        aligned: bool = False,  # whether they may have different numbers of tokens
        aligning: str = "",  # a call that aligns them, for the message where they must not
    ) -> None:
        model = first.model
        if not (model.writes or model.head == "masked"):
            raise InputError(f"{model.name} scores no tokens, so there is no answer that a patch could restore.")
        self.first, self.second = first, second
        self.in_encoder = first.source is not None
        if self.in_encoder and first.ids != second.ids:
            raise InputError("the two targets differ. Patch two texts that an encoder reads, before the same target.")
        ids, other_ids = self.ids(first), self.ids(second)
        if len(ids) != len(other_ids) and not aligned:
            other_way = f", or use {spell(aligning)}, which aligns them" if aligning else ""
            raise InputError(
                f"the texts have {len(ids)} and {len(other_ids)} tokens. Patching goes place by place: replace a word by "
                f"one of as many tokens ({spell('model.tokens')} shows them){other_way}."
            )
        if ids == other_ids:
            raise InputError("the two texts are the same, so there is nothing to carry over.")
        self.causal = model.writes and not self.in_encoder
        shared = common_prefix(ids, other_ids) if self.causal else 0  # where nothing can differ
        self.origins = {at: origin for at, origin in align(ids, other_ids).items() if at >= shared}  # the second's positions
        if not self.origins:
            raise InputError("one text is the beginning of the other, so no position after it has a counterpart to patch.")
        self.positions = list(self.origins)
        if positions is not None:
            self.positions = self._named_positions(positions, shared)
        self.masks = None if model.writes else self._mask_positions()

    def _named_positions(self, positions: Sequence[int | str] | int, shared: int) -> list[int]:
        named = [positions] if isinstance(positions, (int, str)) else positions
        if not named:
            raise InputError("name at least one position to patch, or leave positions out for all.")
        numbers = sorted({self._position(position) for position in named})
        if -1 < max(numbers) < shared:
            raise InputError(f"the texts are the same up to position {shared}, so nothing before it can carry a difference.")
        if not (chosen := [at for at in numbers if at in self.origins or 0 <= at < shared]):
            raise InputError(f"{named[0]!r} has no counterpart in the other text, so it cannot be patched.")
        self.origins |= {at: at for at in chosen if at < shared}
        return chosen

    @property
    def unaligned(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions of each text that have no counterpart in the other."""
        lengths = [len(self.ids(text)) for text in (self.first, self.second)]
        aligned = align(self.ids(self.first), self.ids(self.second))
        return (
            tuple(at for at in range(lengths[0]) if at not in aligned.values()),
            tuple(at for at in range(lengths[1]) if at not in aligned),
        )

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
        origin = find_token(position, self.token_texts(self.first))
        return next((at for at, own in align(self.ids(self.first), self.ids(self.second)).items() if own == origin), -1)

    def _mask_positions(self) -> tuple[int, int]:
        """Where each text has its mask."""
        tokenizer = self.first.model.tokenizer
        first, second = (
            [at for at, token in enumerate(text.ids) if token == tokenizer.mask_token_id]
            for text in (self.first, self.second)
        )
        if len(first) != 1 or len(second) != 1 or align(self.first.ids, self.second.ids).get(second[0]) != first[0]:
            raise InputError(
                f"{self.first.model.name} fills gaps: put one {tokenizer.mask_token} into both texts, at the same place."
            )
        return first[0], second[0]

    # Values and scores ------------------------------------------------------------------------------------------

    def sites(self, part: PatchedPart) -> dict[str, str]:
        """The sites of a part, by layer."""
        blueprint = self.first.model.blueprint
        blocks = blueprint.encoder_blocks if self.in_encoder else blueprint.blocks
        sites = {str(number): self._site(part, number) for number in range(blocks)}
        if part == "residual":
            sites = {"embedding": (ENCODER if self.in_encoder else "") + "embedding", **sites}
        return sites

    def patches(self, part: PatchedPart, values: Mapping[str, Floats]) -> list[Patch]:
        """Every place, position by position, with its value in the first text."""
        sites, positions = self.sites(part), self.positions
        if part == "pattern" and len(self.ids(self.first)) != len(self.ids(self.second)):
            raise InputError("patterns of texts with different numbers of tokens have different shapes. Patch query or key.")
        origins = [self.origins[position] for position in positions]
        if part in BY_HEAD:
            return [
                Patch(layer, head, min(positions), site, Change(0.0, value[None, origins], positions, [head]))
                for layer, site in sites.items()
                for head, value in enumerate(values[site])
            ]
        return [
            Patch(layer, column, position, site, Change(0.0, values[site][self.origins[position]], [position]))
            for column, position in enumerate(positions)
            for layer, site in sites.items()
        ]

    def cost(self, part: PatchedPart) -> tuple[int, int, int]:
        """How many columns and layers there are to patch, and how many tokens that reads."""
        blueprint = self.first.model.blueprint
        layers = (blueprint.encoder_blocks if self.in_encoder else blueprint.blocks) + (part == "residual")
        length = len(self.ids(self.second))
        starts = [min(self.positions)] * self.heads if part in BY_HEAD else self.positions
        return len(starts), layers, layers * sum(length - start if self.causal else length for start in starts)

    def scores(self, text: Activations) -> Floats:
        """Of what follows a text, or fills its mask, without a patch."""
        if self.masks is not None:
            return self._mask_scores(text, Watch())[0]
        return self._next_scores([Feed(text.model.executor.open(text.source), text.ids)])[0][0]

    def patched(
        self, patches: Sequence[RunType], unpatched: UnpatchedText | None
    ) -> Iterator[tuple[RunType, Floats, Mapping[str, Floats]]]:
        """The second text's scores under each patch, and what its watch reads; `unpatched`: that text, where it was kept."""
        if self.masks is not None:
            entering = self._encoder_states()
            for patch in patches:
                yield patch, *self._mask_scores(self.second, patch.watch, entering.get(patch.block))
            return
        executor = self.second.model.executor
        size = max(1, BATCH_TOKENS // len(self.ids(self.second)))
        for start in dict.fromkeys(patch.start for patch in patches):
            here = [patch for patch in patches if patch.start == start]
            for at in range(0, len(here), size):
                batch = here[at : at + size]
                if unpatched is not None:
                    feeds = [unpatched.feed(patch) for patch in batch]
                else:
                    feeds = [Feed(executor.open(self.second.source), self.second.ids, watch=patch.watch) for patch in batch]
                for patch, (scores, sites) in zip(batch, self._next_scores(feeds), strict=True):
                    yield patch, scores, sites

    def _next_scores(self, feeds: Sequence[Feed]) -> list[tuple[Floats, dict[str, Floats]]]:
        """The scores after each feed, and what its watch reads; closes its row."""
        executor = self.first.model.executor
        try:
            return [
                (output.host().copy(), {site: to_numpy(value)[0] for site, value in output.sites.items()})
                for output in executor.run(feeds)
            ]
        finally:
            for feed in feeds:
                executor.close(feed.row)

    def _encoder_states(self) -> dict[int, BlockInput]:
        """What enters each block but the first when an encoder reads the second text: patches begin there."""
        sites = entry_sites(self.second)
        values = self.second.values(*sites.values()) if sites else {}
        return {block: BlockInput(block, values[site]) for block, site in sites.items()}

    def _mask_scores(
        self, text: Activations, watch: Watch, begin: BlockInput | None = None
    ) -> tuple[Floats, dict[str, Floats]]:
        scores, sites = self.first.model.encoder_pass(text.ids, watch, begin)
        assert scores is not None
        assert self.masks is not None
        return scores[self.masks[text is self.second]], sites


@dataclass(frozen=True)
class ReadPair:
    """A pair whose texts were read once: the scores after each, the first one's values at some sites, and the second one."""

    pair: TextPair
    scores: tuple[Floats, Floats]
    values: Mapping[str, Floats]
    second: UnpatchedText | None  # None: whatever patches it reads it anew

    def patched(self, patches: Sequence[RunType]) -> Iterator[tuple[RunType, Floats, Mapping[str, Floats]]]:
        return self.pair.patched(patches, self.second)


@contextmanager
def read_pairs(pairs: Sequence[TextPair], sites: Collection[str]) -> Iterator[list[ReadPair]]:
    """Pairs of one model, read together; what is kept of their second texts is given up again."""
    if not pairs[0].causal:
        yield [
            ReadPair(pair, (pair.scores(pair.first), pair.scores(pair.second)), pair.first.values(*sites), None)
            for pair in pairs
        ]
        return
    executor, watch = pairs[0].first.model.executor, Watch(frozenset(sites))
    firsts = pairs[0]._next_scores([Feed(executor.open(None), pair.first.ids, watch=watch) for pair in pairs])
    with read_unpatched([(pair.second, min(pair.positions)) for pair in pairs]) as seconds:
        yield [
            ReadPair(pair, (scores, second.scores), values, second)
            for pair, (scores, values), second in zip(pairs, firsts, seconds, strict=True)
        ]


def check_size(cost: tuple[int, int, int]) -> None:
    """Refuse what would take hours, before anything runs."""
    columns, layers, tokens = cost
    if tokens > MAX_TOKENS:
        raise InputError(f"patching {columns} × {layers} places of this text reads {tokens:,} tokens. Name a few positions.")
