"""Rules about named tokens: favour them, ban them, or allow nothing else.

An id that is not in the vocabulary, or not on the list any more, is ignored. A ban may leave nothing in play; the policy
reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from glassformer.decoding.rules import Rule
from glassformer.decoding.shortlist import Ids, Shortlist
from glassformer.decoding.token_history import TokenHistory

BAN = -np.inf  # as an amount to add


def logit_bias(logit_bias: Mapping[int, float]) -> Rule:
    """Add to the scores of single tokens (https://platform.openai.com/docs/api-reference/chat/create)."""
    tokens, amounts = np.fromiter(logit_bias, np.int64), np.fromiter(logit_bias.values(), np.float32)
    return lambda shortlist, history: added(shortlist, tokens, amounts)


def sequence_bias(biases: Mapping[tuple[int, ...], float]) -> Rule:
    """Add to the score of each sequence's last token where the text ends with all before it."""
    due = _due(biases)

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        amounts = due(history)
        return added(shortlist, [*amounts], [*amounts.values()])

    return rule


def bad_words(bad_words: Iterable[Sequence[int]], eos: Collection[int] = ()) -> Rule:
    """Never complete any of these sequences. One that is only an end-of-text token is left out."""
    due = _due({tuple(words): BAN for words in bad_words if not (len(words) == 1 and words[0] in eos)})
    return lambda shortlist, history: added(shortlist, [*due(history)], BAN)


def allowed(allowed_tokens: Collection[int]) -> Rule:
    """Nothing but these tokens."""
    tokens = _ids(allowed_tokens)
    return lambda shortlist, history: shortlist.select(shortlist.indices_of(tokens)[0])


def suppressed(suppress_tokens: Collection[int]) -> Rule:
    """None of these tokens."""
    tokens = _ids(suppress_tokens)
    return lambda shortlist, history: added(shortlist, tokens, BAN)


def suppressed_first(ids: Collection[int], forced_first: bool = False) -> Rule:
    """None of these as the first chosen token; as the second, when the first is forced upon a text of one token."""
    tokens = _ids(ids)

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        first = 1 if forced_first and len(history.prompt) <= 1 else 0
        return added(shortlist, tokens, BAN) if history.step == first else shortlist

    return rule


def forced_first(forced_bos_token_id: int) -> Rule:
    """This token after a text of one token, whatever it scores."""
    tokens = _ids([forced_bos_token_id])
    return lambda shortlist, history: _forced(shortlist, tokens) if history.ids.size == 1 else shortlist


def forced_last(ids: Collection[int]) -> Rule:
    """One of these tokens where there is room for one more only, whatever they score."""
    tokens = _ids(ids)
    return lambda shortlist, history: _forced(shortlist, tokens) if history.step == history.room - 1 else shortlist


def forced(forced_tokens: Mapping[int, int]) -> Rule:
    """At these steps these tokens, whatever they score."""
    tokens = {step: _ids([token]) for step, token in forced_tokens.items()}
    return lambda shortlist, history: _forced(shortlist, tokens[history.step]) if history.step in tokens else shortlist


def min_length(min_length: int, eos: Collection[int]) -> Rule:
    """No end before the text, prompt included, has this many tokens."""
    tokens = _ids(eos)
    return lambda shortlist, history: added(shortlist, tokens, BAN) if history.length < min_length else shortlist


def min_new_tokens(min_new_tokens: int, eos: Collection[int]) -> Rule:
    """No end before this many tokens were chosen."""
    tokens = _ids(eos)
    return lambda shortlist, history: added(shortlist, tokens, BAN) if history.step < min_new_tokens else shortlist


def by_grammar(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
    """Keep what the text's grammar allows."""
    return shortlist if history.guide is None else history.guide.shape(shortlist)


def added(shortlist: Shortlist, tokens: Ids | Sequence[int], amounts: npt.ArrayLike) -> Shortlist:
    """Add to these tokens' scores; where a token is named twice, its last amount. The same object if nothing changes."""
    indices, present = shortlist.indices_of(tokens)
    before = shortlist.scores[indices]
    after = before + np.broadcast_to(np.asarray(amounts, np.float32), present.shape)[present]
    return shortlist if np.array_equal(before, after) else shortlist.rescored(indices, after)


def _forced(shortlist: Shortlist, tokens: Ids) -> Shortlist:
    in_vocabulary = tokens if shortlist.ids is not None else tokens[tokens < shortlist.scores.size]
    return Shortlist(np.zeros(in_vocabulary.size, np.float32), in_vocabulary) if in_vocabulary.size else shortlist


def _due(biases: Mapping[tuple[int, ...], float]) -> Callable[[TokenHistory], dict[int, float]]:
    """A function that finds the sequences that the next token could complete: their last tokens, and the sums of their
    amounts. Only those are compared with the text whose last token but one is the text's last."""
    alone: dict[int, float] = {}
    after: dict[int, list[tuple[tuple[int, ...], int, float]]] = {}
    for sequence, amount in biases.items():
        *before, last = sequence
        if before:
            after.setdefault(before[-1], []).append((tuple(before), last, amount))
        else:
            alone[last] = amount

    def due(history: TokenHistory) -> dict[int, float]:
        amounts = dict(alone)
        for before, last, amount in after.get(int(history.ids[-1]), ()) if history.ids.size else ():
            if tuple(history.ids[-len(before) :].tolist()) == before:
                amounts[last] = amounts.get(last, 0) + amount
        return amounts

    return due


def _ids(tokens: Iterable[int]) -> Ids:
    """As a shortlist has them: each once, in ascending order."""
    return np.unique(np.fromiter(tokens, np.int64))
