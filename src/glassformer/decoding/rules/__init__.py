"""Rules: small pure functions from the candidates in play to the candidates left in play.

A rule is made once of its settings (`top_k(50)`) and then called at each step with the candidates and what stands before
them. It writes to neither. Which rules there are, and in which order they run, is in the table of settings,
`decoding/settings_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.token_history import TokenHistory

Rule: TypeAlias = Callable[[Shortlist, TokenHistory], Shortlist]


class NamedRule(NamedTuple):
    """A rule in force, and what it is called."""

    name: str
    rule: Rule


class TextIds(NamedTuple):
    """The token ids of what settings name by text. Rules are made of settings and these."""

    logit_bias: Mapping[int, float] = {}
    bad_words: Sequence[Sequence[int]] = ()
    dry_breakers: frozenset[int] = frozenset()
    forced_tokens: Mapping[int, int] = {}  # by step
