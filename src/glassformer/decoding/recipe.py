"""A recipe: settings made ready for choosing. It is made once, and shared by all texts that are written by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.decoding import stopping
from glassformer.decoding.contradictions import GRAMMARS
from glassformer.decoding.grammar import Grammar
from glassformer.decoding.order import Named, Terms, chain, sequences
from glassformer.decoding.settings import BREAKERS, GenerationConfig, several, strings
from glassformer.decoding.stopping import Stop
from glassformer.errors import SettingError


@dataclass(frozen=True)
class Recipe:
    settings: GenerationConfig
    rules: tuple[Named, ...] = ()
    stops: tuple[Stop, ...] = ()
    grammar: Grammar | None = None

    @classmethod
    def of(cls, settings: GenerationConfig, tokenizer: Any = None, size: int | None = None) -> Recipe:
        """`tokenizer` is needed where settings name texts; `size`, the length of the scores, for a grammar."""
        named = [name for name in (*TEXTS, *GRAMMARS) if settings.on(name)]
        if settings.on("logit_bias") and any(isinstance(key, str) for key, _ in _pairs(settings)):
            named.append("logit_bias")
        if settings.on("forced_tokens") and any(isinstance(value, str) for _, value in _pairs(settings, "forced_tokens")):
            named.append("forced_tokens")
        if named and tokenizer is None:
            raise SettingError(f"{named[0]} names texts, so a tokenizer is needed. Pass tokenizer=tokenizer too.")
        terms = Terms(
            biases=_biases(settings, tokenizer),
            bad_words=_bad_words(settings, tokenizer),
            breakers=_breakers(settings, tokenizer),
            forced=_forced(settings, tokenizer),
            least=len(settings.eos) + 1 if settings.num_beams > 1 else 1,
        )
        if any(not ids for ids in settings.bad_words_ids or ()):
            raise SettingError("bad_words_ids has an empty list. Leave it out.")
        if size is not None:
            _check_ids(settings, terms, size)
        return cls(settings, chain(settings, terms), _stops(settings, tokenizer), _grammar(settings, tokenizer, size))


TEXTS = ("stop_strings", "bad_words")  # settings that name texts


def _biases(settings: GenerationConfig, tokenizer: Any) -> dict[int, float]:
    """By id; a text is a token's, even one of digits."""
    found = {}
    for key, value in _pairs(settings):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value < float("inf"):
            raise SettingError(f"logit_bias for {key!r} is {value!r}; it must be a number, or minus infinity.")
        if isinstance(key, str):
            key = _one(tokenizer, "logit_bias", key, "Use sequence_bias.")
        found[int(key)] = float(value)
    return found


def _forced(settings: GenerationConfig, tokenizer: Any) -> dict[int, int]:
    """By step; a step may be told as JSON must tell a key, in digits."""
    found: dict[int, int] = {}
    for step, token in _pairs(settings, "forced_tokens"):
        if not str(step).isdecimal():
            raise SettingError(f"forced_tokens has the step {step!r}; steps are whole numbers, 0 the first.")
        if isinstance(token, str):
            token = _one(tokenizer, "forced_tokens", token, "Give each its step.")
        if isinstance(token, bool) or not isinstance(token, int):
            raise SettingError(f"forced_tokens at step {step} is {token!r}; it must be a token id, or a token's text.")
        found[int(step)] = token
    return found


def _one(tokenizer: Any, name: str, text: str, mend: str) -> int:
    """The one token that a text is."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise SettingError(f"{name} names {text!r}, which is {len(ids)} tokens, not one. {mend}")
    return int(ids[0])


def _pairs(settings: GenerationConfig, name: str = "logit_bias") -> list[tuple[Any, Any]]:
    """Pairs, of a dictionary or of a list, as JSON must write ids."""
    given = getattr(settings, name) or {}
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    if any(len(pair) != 2 for pair in pairs):
        what = "a token and a number" if name == "logit_bias" else "a step and a token"
        raise SettingError(f"{name} is {given!r}; it must be a dictionary, or a list of pairs of {what}.")
    return [(key, value) for key, value in pairs]


def _check_ids(settings: GenerationConfig, terms: Terms, size: int) -> None:
    """Refuse ids that are in no vocabulary of this size; -1 is how some files say that nothing is suppressed."""
    s = settings
    named: dict[str, Iterable[int]] = {
        "logit_bias": terms.biases,
        "sequence_bias": (one for ids in sequences(s.sequence_bias) for one in ids) if s.on("sequence_bias") else (),
        "bad_words_ids": (one for ids in s.bad_words_ids or () for one in ids),
        "allowed_tokens": s.allowed_tokens or (),
        "suppress_tokens": (one for one in s.suppress_tokens or () if one != -1),
        "begin_suppress_tokens": (one for one in s.begin_suppress_tokens or () if one != -1),
        "forced_bos_token_id": several(s.forced_bos_token_id),
        "forced_eos_token_id": several(s.forced_eos_token_id),
        "forced_tokens": terms.forced.values(),
    }
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < size:
                raise SettingError(f"{name} has the id {token}, which is outside the vocabulary of {size}. Leave it out.")


def _bad_words(settings: GenerationConfig, tokenizer: Any) -> list[list[int]]:
    """Each word as it is written at the start of a text, and within one."""
    if "" in (settings.bad_words or ()):
        raise SettingError("bad_words has an empty text. Leave it out.")
    ways = [word for bare in settings.bad_words or () for word in (bare, f" {bare}")]
    found = [list(tokenizer.encode(word, add_special_tokens=False)) for word in ways]
    return [ids for ids in found if ids]


def _breakers(settings: GenerationConfig, tokenizer: Any) -> frozenset[int]:
    """What ends a passage: the token that each breaker is after a letter."""
    if not settings.on("dry_multiplier") or tokenizer is None:
        return frozenset()
    texts = BREAKERS if settings.dry_sequence_breakers is None else settings.dry_sequence_breakers
    return frozenset(tokenizer.encode(f"a{text}", add_special_tokens=False)[-1] for text in texts)


def _stops(settings: GenerationConfig, tokenizer: Any) -> tuple[Stop, ...]:
    s = settings
    found: list[Stop] = []
    if s.on("stop_strings"):
        texts = strings(s.stop_strings)
        if "" in texts:
            raise SettingError(f"stop_strings is {s.stop_strings!r}; each must be a text of at least one character.")
        found.append(stopping.at_strings(texts, lambda ids: tokenizer.decode(ids, skip_special_tokens=False)))
    if s.stop_when is not None:
        found.append(stopping.when(s.stop_when))
    found.extend(stopping.familiar(function) for function in s.stopping_criteria or ())
    if s.cancel is not None:
        if not callable(getattr(s.cancel, "is_set", None)):
            raise SettingError(f"cancel is {s.cancel!r}; it must be a threading.Event, or have is_set() as one has.")
        found.append(stopping.cancelled(s.cancel))
    return tuple(found)


def _grammar(settings: GenerationConfig, tokenizer: Any, size: int | None) -> Grammar | None:
    for name in GRAMMARS:
        if settings.on(name):
            return Grammar.compile(name, getattr(settings, name), tokenizer, size=size, eos=settings.eos)
    return None
