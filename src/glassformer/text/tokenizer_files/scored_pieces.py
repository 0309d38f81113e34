"""SentencePiece's two algorithms, BPE and Unigram, over the tokenizers library: for its own files, and for GGUF's copies.

A vocabulary is pieces, each with a score and a kind. `▁` is a space inside a piece.

joined   BPE: the neighbours whose union scores highest are joined, again and again
weighed  Unigram: of all ways to cut the text, the one whose scores add up highest

BPE's merges are not stored, and neither are tiktoken's: `merges` are every pair of tokens whose union is one, in the order
of the unions, since the two neighbours whose union ranks first are joined, and of equals the leftmost. Which of several
pairs for one token stands first matters only where both could be taken from the same text, as with (aa, a) and (a, aa) in
aaaa. There the last step of the token's own encoding decides: inside a text, a token comes about the way it does alone.

The tables say what is done to a text first, in SentencePiece's order: characters are replaced (`charsmap`, NFKC and a
little more), outer and double spaces go (`squeezed`), and one space is put before the text (`prefixed`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, AnyStr

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from glassformer.ground.errors import CheckpointError
from glassformer.text.token_bytes import SPACE_MARKER
from glassformer.text.tokenizer_files.class_pipelines import piece_decoder
from glassformer.text.tokenizer_files.tokenizer_classes import PieceOrder

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
FAR_BELOW = 1e4  # a score that no sum of a text's others reaches
NEVER = 1 << 62  # a rank after all others


def merges(ranks: Mapping[AnyStr, int]) -> list[tuple[AnyStr, AnyStr]]:
    """The merges of a ranked vocabulary, best rank first."""
    pairs_by_rank: list[tuple[AnyStr, AnyStr]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [
            (left, right)
            for position in range(1, len(token))
            if (left := token[:position]) in ranks and (right := token[position:]) in ranks
        ]
        if len(pairs) > 1 and {left for left, _ in pairs} & {right for _, right in pairs}:
            pairs = _last_step(token, ranks)
        pairs_by_rank += pairs
    return pairs_by_rank


def _last_step(token: AnyStr, ranks: Mapping[AnyStr, int]) -> list[tuple[AnyStr, AnyStr]]:
    """The two parts that the token is joined from in the end, or nothing when its encoding never gets there."""
    parts = [token[position : position + 1] for position in range(len(token))]
    joined = [ranks.get(left + right, NEVER) for left, right in pairwise(parts)]
    while len(parts) > 2:
        best = min(joined)
        if best == NEVER:
            return []
        position = joined.index(best)
        parts[position : position + 2] = [parts[position] + parts[position + 1]]
        del joined[position]
        if position:
            joined[position - 1] = ranks.get(parts[position - 1] + parts[position], NEVER)
        if position < len(joined):
            joined[position] = ranks.get(parts[position] + parts[position + 1], NEVER)
    return [(parts[0], parts[1])]


@dataclass
class ScoredPieces:
    tokens: list[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    source: str  # what to name in an error
    unknown: int | None = None
    charsmap: bytes = b""
    remove_extra_whitespaces: bool = False
    add_prefix_space: bool = True
    byte_fallback: bool = False  # characters that no piece covers are encoded as bytes, `<0xE2>`

    def bpe(self) -> Tokenizer:
        """The BPE model alone; how a text gets to it, and back, is set by `dress` or by the caller."""
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if len(vocabulary) < len(self.tokens):
            twice = next(n for n, token in enumerate(self.tokens) if vocabulary[token] != n)
            raise CheckpointError(
                f"{self.source}'s token {twice}, {self.tokens[twice]!r}, stands twice. Fetch the file again."
            )
        unknown = None if self.unknown is None else self.tokens[self.unknown]
        pairs = merges(self._ranks())
        return Tokenizer(BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=self.byte_fallback))

    def unigram(self) -> Tokenizer:
        """The Unigram model alone."""
        if self.unknown is None:
            raise CheckpointError(f"{self.source} names no token for unknown text. Fetch the file again.")
        pieces = list(zip(self.tokens, self.scores, strict=True))
        return Tokenizer(Unigram(pieces, unk_id=self.unknown, byte_fallback=self.byte_fallback))

    def _ranks(self) -> dict[str, int]:
        """The pieces that text can be made of, by score; of equal ones the first in the file goes first."""
        token_ids = [token_id for token_id, kind in enumerate(self.kinds) if kind in (NORMAL, USER_DEFINED, UNUSED)]
        token_ids.sort(key=lambda token_id: -self.scores[token_id])
        return {self.tokens[token_id]: rank for rank, token_id in enumerate(token_ids)}

    def set_pipeline(self, backend: Tokenizer, prepend_scheme: str = "first") -> None:
        """What is done to a text before and after, as the tables say.

        `prepend_scheme`: before what a space is put, the "first" piece of a text between special tokens or "always" each.
        """
        backend.normalizer = normalizers.Sequence(self._normalizers())
        if self.add_prefix_space and self.remove_extra_whitespaces:
            backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARKER, prepend_scheme=prepend_scheme, split=False)
        backend.decoder = self.decoder()

    def _normalizers(self) -> list[Any]:
        steps: list[Any] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.remove_extra_whitespaces:  # a space in front is kept where there shall be one: nothing is put before it then
            outer = r" +\z" if self.add_prefix_space else r"\A +| +\z"
            steps += [normalizers.Replace(Regex(outer), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        elif self.add_prefix_space:
            steps.append(normalizers.Prepend(SPACE_MARKER))
        return [*steps, normalizers.Replace(" ", SPACE_MARKER)]

    def set_spaced_pipeline(self, backend: Tokenizer, spaces: str = "\n") -> None:
        """As the classes of PEGASUS and mBART-50 do it: every space begins a piece, and several are one.

        `spaces`: what counts as a space beside, where the file has no table.
        """
        table: list[Any] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        table += [normalizers.Replace(spaces, " ")] if spaces and not self.charsmap else []
        backend.normalizer = normalizers.Sequence([*table, normalizers.Replace(Regex(" {2,}"), " ")])
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARKER, prepend_scheme="always")
        backend.decoder = decoders.Metaspace(SPACE_MARKER, prepend_scheme="always")

    def set_word_pipeline(self, backend: Tokenizer, before: Sequence[Any] = (), add_prefix_space: bool = True) -> None:
        """As the classes of T5, XLM-RoBERTa and ALBERT do it: every word with its space before it, and no other space.

        `before`: normalizers that come before the table's.
        """
        steps = [*before, *([normalizers.Precompiled(self.charsmap)] if self.charsmap else [])]
        if steps:
            backend.normalizer = normalizers.Sequence(steps)
        scheme = "always" if add_prefix_space else "never"
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE_MARKER, prepend_scheme=scheme)]
        )
        backend.decoder = self.decoder() if self.byte_fallback else decoders.Metaspace(SPACE_MARKER, prepend_scheme=scheme)

    def decoder(self) -> Any:
        return piece_decoder(strip_prefix_space=self.add_prefix_space or self.remove_extra_whitespaces)

    def reorder(self, order: PieceOrder, special: Mapping[str, str]) -> None:
        """Count as a class does whose ids are not the file's; `special`: the tokens with a role."""
        before, after = ([special[role] for role in roles if role in special] for roles in (order.before, order.after))
        before += order.reserved
        after = [*order.languages, *after]
        self.tokens = [*before, *self.tokens[order.replaced :], *after]
        self.scores = [*[0.0] * len(before), *self.scores[order.replaced :], *[0.0] * len(after)]
        self.kinds = [*[CONTROL] * len(before), *self.kinds[order.replaced :], *[CONTROL] * len(after)]
        unknown = special.get("unk_token")
        self.unknown = self.tokens.index(unknown) if unknown in self.tokens else None

    def renumber(self, vocabulary: Mapping[str, int], unknown: str) -> None:
        """Take the ids of a vocabulary that has other tokens too, as Marian's has those of the language that is written.

        A text may be made of those only where it can be made of nothing else: their scores are far below all others.
        """
        score_of = {
            token: score
            for token, score, kind in zip(self.tokens, self.scores, self.kinds, strict=True)
            if kind in (NORMAL, USER_DEFINED)
        }
        foreign = min(score_of.values(), default=0.0) - FAR_BELOW
        self.tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        self.scores = [score_of.get(token, foreign) for token in self.tokens]
        self.kinds = [NORMAL if token in score_of else UNUSED for token in self.tokens]
        self.unknown = vocabulary[unknown]

    def added_tokens(self, normalized: Collection[int] = ()) -> list[AddedToken]:
        """The pieces that are matched whole anywhere in a text: control tokens, and those that a user defined."""
        return [
            AddedToken(token, special=kind == CONTROL, normalized=index in normalized)
            for index, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ]
