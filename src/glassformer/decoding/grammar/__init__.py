"""Grammars: which texts a model may write, as a JSON schema, a regular expression, a list of choices or a Lark grammar.

A `Grammar` is made ready once and shared; a `Guide` is one text's walk through it. Before each token the guide says which
candidates can stand next, so that the finished text fits whatever the scores were. A candidate is allowed exactly when the
text so far and its bytes begin some text of the grammar: how words are cut into tokens stays the model's affair. An end is
allowed exactly when the text is whole. Tokens that are no text, such as `<|im_start|>`, are never allowed, unless a Lark
grammar names them.

The walk itself is llguidance's (https://github.com/guidance-ai/llguidance): a lexer of derivatives of regular expressions
and an Earley parser of its lexemes, led along the tree of all tokens' bytes. It counts what it spends, and gives up on a
grammar that would take too long.

JSON is written on one line, as `json.dumps` writes it: `{"name": "Ann", "ages": [1, 2]}`. Free white space would let a
small model write nothing else. Properties come in the schema's order. A schema may say otherwise under `x-guidance`, such
as `{"x-guidance": {"whitespace_flexible": true}}`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.decoding.grammar.library import (
    SMALLER,
    GrammarTokenizer,
    GrammarVocabulary,
    build_matcher,
    reason,
    refusal,
    vocabulary_of,
)
from glassformer.decoding.grammar.sources import SOURCES, json_schema_of, locate_fault
from glassformer.decoding.shortlist import Shortlist
from glassformer.ground.errors import SettingError

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Grammar", "Guide"]


Mask: TypeAlias = npt.NDArray[np.bool_]


class Grammar:
    """Made by `compile`; `guide()` begins a text."""

    def __init__(self, kind: str, vocabulary: GrammarVocabulary, matcher: LLMatcher) -> None:
        self.kind = kind
        self.vocabulary = vocabulary
        self._matcher = matcher  # at the start, and there it stays

    @classmethod
    def compile(
        cls, kind: str, value: Any, tokenizer: GrammarTokenizer, *, size: int | None = None, eos: Collection[int] = ()
    ) -> Grammar:
        """`kind`: the setting, `json_schema`, `regex`, `choices` or `grammar`; `size`: how many of the tokenizer's ids
        the model scores, by default all; `eos`: the ids that end a text."""
        source = SOURCES[kind](value)
        vocabulary = vocabulary_of(tokenizer, size, frozenset(eos))
        matcher = build_matcher(kind, source, vocabulary.ll_tokenizer)
        if message := matcher.get_error():
            place = locate_fault(json_schema_of(value), message, vocabulary.ll_tokenizer) if kind == "json_schema" else ""
            raise SettingError(refusal(kind, message, place))
        grammar = cls(kind, vocabulary, matcher)
        grammar.guide().allowed()  # raises if no text can begin
        return grammar

    def guide(self) -> Guide:
        """A walk from the start."""
        return Guide(self, self._matcher.deep_copy())

    def __repr__(self) -> str:
        return f"Grammar({self.kind})"


class Guide:
    """Where one text stands in its grammar. The prompt is no part of the text."""

    __slots__ = ("_allowed", "_grammar", "_has_text", "_length", "_matcher", "done")

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self.done = False  # the text is whole, and nothing can follow
        self._grammar = grammar
        self._matcher = matcher
        self._length = 0  # tokens
        self._has_text = False  # whether one of them was text
        self._allowed: Mask | None = None  # computed once for each token

    def allowed(self) -> Mask:
        """For each id whether it can stand next; not to be written to."""
        if self._allowed is None:
            vocabulary = self._grammar.vocabulary
            packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            bits = np.unpackbits(packed, count=vocabulary.slots, bitorder="little").view(np.bool_)
            mask = bits[: vocabulary.size]
            if vocabulary.opening is not None and not self._has_text:
                bits[vocabulary.silent] = True
                mask = bits[vocabulary.opening]
            mask[vocabulary.ends] |= bits[vocabulary.end]
            self._allowed = mask
        return self._allowed

    def shape(self, shortlist: Shortlist) -> Shortlist:
        """The candidates that the grammar allows. There may be more scores than ids; what stands for no text is out."""
        allowed, ids = self.allowed(), shortlist.ids
        if ids is not None:
            in_vocabulary = ids < allowed.size
            return shortlist.keep(in_vocabulary & allowed[np.where(in_vocabulary, ids, 0)])
        if (more := shortlist.scores.size - allowed.size) != 0:
            allowed = np.pad(allowed, (0, max(0, more)))[: shortlist.scores.size]
        return shortlist.keep(allowed)

    def accept(self, token: int) -> None:
        """Go on by this token."""
        vocabulary, slot = self._grammar.vocabulary, token
        if not 0 <= token < vocabulary.size or not self.allowed()[token]:
            raise SettingError(
                f"{self._grammar.kind} does not allow token {token} after {self._length} tokens. "
                "Give it one of those that Guide.allowed() marks."
            )
        if token in vocabulary.ends:
            slot = vocabulary.end if self._matcher.is_accepting() else token  # a Lark grammar can name it
        elif token not in vocabulary.special:
            slot = token if vocabulary.opening is None or self._has_text else int(vocabulary.opening[token])
            self._has_text = True
        if slot != vocabulary.silent:
            self._matcher.consume_token(slot)
            self._check()
            self.done = self._matcher.is_stopped()
        self._length += 1
        self._allowed = None

    def fork(self) -> Guide:
        """Another walk from here, which goes its own way."""
        clone = Guide(self._grammar, self._matcher.deep_copy())
        clone.done, clone._length, clone._has_text, clone._allowed = self.done, self._length, self._has_text, self._allowed
        return clone

    def _check(self) -> None:
        """Raise what stopped the walk before the text was complete."""
        if not self._matcher.is_error():
            return
        kind, message = self._grammar.kind, self._matcher.get_error()
        if message.startswith("NoExtension"):
            raise SettingError(
                f"{kind} leads nowhere after {self._length} tokens: no text fits, or this tokenizer cannot spell it. "
                "Allow more, or use a model with a byte-level tokenizer."
            )
        raise SettingError(f"{kind} cannot be followed after {self._length} tokens: {reason(message)}. {SMALLER}")
