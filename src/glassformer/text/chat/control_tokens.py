"""Control tokens that a conversation spells out: encoded as plain text, so that no message can pose as another role's.

The conversation's own spellings are wrapped in two characters of no meaning before the template runs. Afterwards the
wrapped ones are encoded letter by letter, and those that the template wrote itself become the tokens that they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tokenizers

from glassformer.ground.errors import InputError

BEGIN, END = "\U000f0000", "\U000f0001"  # for private use: no script has them
Encode: TypeAlias = Callable[[str], list[int]]


class ControlTokens:
    """The control tokens of a tokenizer and a template: all special ones, and the added ones that the template writes."""

    def __init__(self, backend: tokenizers.Tokenizer, literals: str | Sequence[str], encode: Encode) -> None:
        self.backend = backend
        self._encode = encode  # a text as the tokenizer reads it, without tokens around it
        tokens = [
            token.content
            for token in backend.get_added_tokens_decoder().values()
            if token.special or (token.content in literals and not token.content.isspace())
        ]
        pattern = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)"
        self.pattern = re.compile(pattern)
        self.wrapped_pattern = re.compile(f"{BEGIN}({pattern}){END}|[{BEGIN}{END}]")

    def wrap(self, value: Any) -> Any:
        """The same with every control token in its texts wrapped; a mapping's keys stay."""
        if isinstance(value, str):
            return self.pattern.sub(lambda match: f"{BEGIN}{match[0]}{END}", re.sub(f"[{BEGIN}{END}]", "", value))
        if isinstance(value, Mapping):
            return {key: self.wrap(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.wrap(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        """The ids of a rendered text, the wrapped tokens letter by letter."""
        first, *rest = self.wrapped_pattern.split(text)
        ids = self._encode(first)
        for index, piece in enumerate(rest):
            if not piece:
                continue
            if index % 2:  # between two wrapped ones
                ids += self._encode_mid_text(piece, self._encode)
                continue
            letters = self._encode_mid_text(piece, self._encode_without_added_tokens)
            if self.backend.token_to_id(piece) in letters:
                raise InputError(f"{piece!r} cannot be kept as text: the tokenizer has no other spelling. Take it out.")
            ids += letters
        return ids

    def _encode_mid_text(self, piece: str, encode: Encode) -> list[int]:
        """A piece's ids in the middle of a text, where no space is put before it as at the beginning."""
        line, ids = self._encode("\n"), encode(f"\n{piece}")
        return ids[len(line) :] if ids[: len(line)] == line else encode(piece)

    def _encode_without_added_tokens(self, text: str) -> list[int]:
        """Encoded by the model alone, which knows no added tokens."""
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        before = self.backend.pre_tokenizer
        parts = [text] if before is None else [part for part, _ in before.pre_tokenize_str(text)]
        return [token.id for part in parts for token in self.backend.model.tokenize(part)]
