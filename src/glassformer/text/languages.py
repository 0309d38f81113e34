"""Languages that have tokens of their own, as translators of many languages know them: mBART, M2M-100, NLLB.

A text's language stands before it or after its end token; a target's is the first token that is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tokenizers
from tokenizers import processors

from glassformer.ground.errors import InputError, did_you_mean


@dataclass(frozen=True)
class LanguageTokens:
    """`tokens`: by language code; `before`: a text's stands before it, and not after its end token."""

    tokens: Mapping[str, str]
    before: bool
    end: str
    source: str
    target: str | None = None

    def token(self, code: str) -> str:
        """The token of a language."""
        if code not in self.tokens:
            hint = did_you_mean(code, self.tokens)
            raise InputError(f"{code!r} is no language of this tokenizer.{hint} It knows {', '.join(self.tokens)}.")
        return self.tokens[code]

    def around(self, code: str) -> tuple[list[str], list[str]]:
        """The tokens before a text and after it."""
        token = self.token(code)
        return ([token], [self.end]) if self.before else ([], [self.end, token])

    def set_around(self, backend: tokenizers.Tokenizer, code: str) -> None:
        """Let the library put a language's tokens around texts."""
        first, last = self.around(code)
        backend.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", "$B", *last],
            special_tokens=[(token, backend.token_to_id(token)) for token in (*first, *last)],
        )


class LanguageMixin:
    """What a tokenizer of many languages has beside: `src_lang`, `tgt_lang`; others have neither."""

    backend: tokenizers.Tokenizer
    languages: LanguageTokens | None

    @property
    def src_lang(self) -> str:
        """The language of the texts that are read."""
        return self._spoken().source

    @src_lang.setter
    def src_lang(self, code: str) -> None:
        spoken = self._spoken()
        spoken.set_around(self.backend, code)
        self.languages = replace(spoken, source=code)

    @property
    def tgt_lang(self) -> str | None:
        """The language of what is written, for `text_target`; None: that of the source."""
        return self._spoken().target

    @tgt_lang.setter
    def tgt_lang(self, code: str | None) -> None:
        spoken = self._spoken()
        if code is not None:
            spoken.token(code)
        self.languages = replace(spoken, target=code)

    @property
    def lang_code_to_id(self) -> dict[str, int]:
        """The id of each language's token."""
        return {code: self.get_lang_id(code) for code in self._spoken().tokens}

    def get_lang_id(self, lang: str) -> int:
        """The id of a language's token: the first that a target in this language begins with."""
        number = self.backend.token_to_id(self._spoken().token(lang))
        assert number is not None
        return number

    def _spoken(self) -> LanguageTokens:
        if self.languages is None:  # so that `hasattr` says no
            raise AttributeError("this tokenizer has no tokens of languages, so neither src_lang nor tgt_lang.")
        return self.languages

    @contextmanager
    def _as_target(self) -> Iterator[None]:
        """Texts are encoded as targets."""
        if self.languages is None or self.languages.target in (None, self.languages.source):
            yield
            return
        spoken = self.languages
        spoken.set_around(self.backend, str(spoken.target))
        try:
            yield
        finally:
            spoken.set_around(self.backend, spoken.source)

    @property
    def language_fields(self) -> dict[str, Any]:
        """What tokenizer_config.json says of languages."""
        spoken = self.languages
        return {} if spoken is None else {"src_lang": spoken.source, "tgt_lang": spoken.target}
