"""Merges from a ranked vocabulary, for the formats that store no merges: tiktoken's ranks and SentencePiece's scores.

Both join, again and again, the two neighbours whose union ranks first, and of equals the leftmost. As merges that is
every pair of tokens whose union is one, in the order of the unions. Which of several pairs for one token stands first
matters only where both could be taken from the same text, as with (aa, a) and (a, aa) in aaaa. There the last step of
the token's own encoding decides: inside a text, a token comes about the way it does alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import AnyStr

NEVER = 1 << 62


def merges(ranks: Mapping[AnyStr, int]) -> list[tuple[AnyStr, AnyStr]]:
    """The pairs that join, best rank first."""
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
