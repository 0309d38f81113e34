"""Two texts side by side: which position of one stands for which of the other, and where patches can be put.

Texts of as many tokens are put side by side, position by position. Others are aligned by what they have in common; a
position without a counterpart is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from difflib import SequenceMatcher

from glassformer.engine.protocol import common_prefix
from glassformer.ground.errors import InputError, spell
from glassformer.ground.sites import ENCODER
from glassformer.observe.activations import Activations
from glassformer.views.tokens import find_token


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
    def prefix(self) -> str:
        """What the names of the stack's sites begin with."""
        return ENCODER if self.in_encoder else ""

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
