"""A recipe: settings made ready for choosing tokens. It is made once, and shared by all texts that are written by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.decoding import stopping
from glassformer.decoding.grammar import Grammar
from glassformer.decoding.rules import NamedRule, TextIds, custom
from glassformer.decoding.settings import GenerationConfig, as_texts
from glassformer.decoding.settings_table import GRAMMARS, RULES, SETTINGS
from glassformer.decoding.stopping import Stop
from glassformer.engine.protocol import Source
from glassformer.ground.errors import SettingError, did_you_mean
from glassformer.ground.typecheck import brief

DRY_BREAKERS = ("\n", ":", '"', "*")  # what DRY does not match across, unless others are given


@dataclass(frozen=True)
class Recipe:
    settings: GenerationConfig
    rules: tuple[NamedRule, ...] = ()
    stops: tuple[Stop, ...] = ()
    grammar: Grammar | None = None

    @classmethod
    def of(cls, settings: GenerationConfig, tokenizer: Any = None, size: int | None = None) -> Recipe:
        """`tokenizer` is needed where settings name texts; `size`, the length of the scores, for a grammar."""
        if tokenizer is None and (name := next(_naming_texts(settings), None)):
            raise SettingError(f"{name} names texts, so a tokenizer is needed. Pass tokenizer=tokenizer too.")
        ids = TextIds(
            logit_bias=_logit_bias(settings, tokenizer),
            bad_words=_bad_words(settings, tokenizer),
            dry_breakers=_dry_breakers(settings, tokenizer),
            forced_tokens=_forced_tokens(settings, tokenizer),
        )
        if any(not sequence for sequence in settings.bad_words_ids or ()):
            raise SettingError("bad_words_ids has an empty list. Leave it out.")
        if size is not None:
            _check_ids(settings, ids, size)
        return cls(settings, rules(settings, ids), _stops(settings, tokenizer), _grammar(settings, tokenizer, size))

    def source(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """What an encoder reads: with the global tokens that the settings choose, if they choose any."""
        chosen = self.settings.global_tokens
        return ids if chosen is None else Source(ids, chosen)


def rules(settings: GenerationConfig, ids: TextIds) -> tuple[NamedRule, ...]:
    """The rules in force, in their order: the user's, or that of the table of settings."""
    active: dict[str, list[NamedRule]] = {}
    for name in RULES:
        if settings.is_active(name):
            rule = SETTINGS[name].make_rule(lambda parameter: value_of(settings, ids, parameter))
            active[name] = rule if isinstance(rule, list) else [NamedRule(name, rule)]
    if settings.rules is None:
        return tuple(rule for group in active.values() for rule in group)
    ordered: list[NamedRule] = []
    placed = set()
    for entry in settings.rules:
        if callable(entry):
            ordered.append(NamedRule(custom.name_of(entry), custom.from_function(entry)))
            continue
        if entry not in RULES:
            raise SettingError(f"there is no rule {entry!r}.{did_you_mean(entry, RULES)} Rules: {', '.join(RULES)}.")
        if entry in placed:
            raise SettingError(f"the order of rules has {entry!r} twice. Leave one out.")
        if entry not in active:
            raise SettingError(f"the order of rules has {entry!r}, which is not in force. Set it, or leave it out.")
        placed.add(entry)
        ordered.extend(active[entry])
    if missing := active.keys() - placed:
        raise SettingError(f"{min(missing)} is in force, but has no place in the order of rules. Put it in, or unset it.")
    return tuple(ordered)


def value_of(settings: GenerationConfig, ids: TextIds, name: str) -> Any:
    """The value of a setting; of one that names texts, in ids."""
    return getattr(ids if name in TextIds._fields else settings, name)


def _naming_texts(settings: GenerationConfig) -> Iterator[str]:
    """The settings that name texts, so that a tokenizer is needed."""
    yield from (name for name in ("stop_strings", "bad_words", *GRAMMARS) if settings.is_active(name))
    if any(isinstance(token, str) for token, _ in _pairs(settings, "logit_bias")):
        yield "logit_bias"
    if any(isinstance(token, str) for _, token in _pairs(settings, "forced_tokens")):
        yield "forced_tokens"


def _logit_bias(settings: GenerationConfig, tokenizer: Any) -> dict[int, float]:
    """By id; a text is a token's, even one of digits."""
    biases = {}
    for token, bias in _pairs(settings, "logit_bias"):
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not bias < float("inf"):
            raise SettingError(f"logit_bias for {token!r} is {bias!r}; it must be a number, or minus infinity.")
        if isinstance(token, str):
            token = _single_token(tokenizer, "logit_bias", token, "Use sequence_bias.")
        if isinstance(token, bool) or not isinstance(token, int):
            raise SettingError(f"logit_bias names {brief(token)}; it must be a token id, or a token's text.")
        biases[token] = float(bias)
    return biases


def _forced_tokens(settings: GenerationConfig, tokenizer: Any) -> dict[int, int]:
    """By step; a step may be in digits, as a key of JSON must be."""
    tokens: dict[int, int] = {}
    for step, token in _pairs(settings, "forced_tokens"):
        if not str(step).isdecimal() or len(str(step)) > 10:
            raise SettingError(f"forced_tokens has the step {brief(step)}; steps are whole numbers, 0 the first.")
        if isinstance(token, str):
            token = _single_token(tokenizer, "forced_tokens", token, "Give each its step.")
        if isinstance(token, bool) or not isinstance(token, int):
            raise SettingError(f"forced_tokens at step {step} is {token!r}; it must be a token id, or a token's text.")
        tokens[int(step)] = token
    return tokens


def _single_token(tokenizer: Any, name: str, text: str, fix: str) -> int:
    """The one token that a text is."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise SettingError(f"{name} names {text!r}, which is {len(ids)} tokens, not one. {fix}")
    return int(ids[0])


def _pairs(settings: GenerationConfig, name: str) -> list[tuple[Any, Any]]:
    """Pairs, of a dictionary or of a list, as JSON must write ids."""
    value = getattr(settings, name) or {}
    pairs = list(value.items() if isinstance(value, Mapping) else value)
    if any(len(pair) != 2 for pair in pairs):
        what = "a token and a number" if name == "logit_bias" else "a step and a token"
        raise SettingError(f"{name} is {value!r}; it must be a dictionary, or a list of pairs of {what}.")
    return [(key, value) for key, value in pairs]


def _check_ids(settings: GenerationConfig, ids: TextIds, size: int) -> None:
    """Refuse ids that are in no vocabulary of this size."""
    for name, info in SETTINGS.items():
        if info.token_ids is None or not settings.is_active(name):
            continue
        for token in info.token_ids(value_of(settings, ids, name)):
            if not 0 <= token < size:
                raise SettingError(f"{name} has the id {token}, which is outside the vocabulary of {size}. Leave it out.")


def _bad_words(settings: GenerationConfig, tokenizer: Any) -> list[list[int]]:
    """Each word as it is written at the start of a text, and within one."""
    if "" in (settings.bad_words or ()):
        raise SettingError("bad_words has an empty text. Leave it out.")
    texts = [text for word in settings.bad_words or () for text in (word, f" {word}")]
    return [ids for ids in _encoded(tokenizer, texts) if ids]


def _dry_breakers(settings: GenerationConfig, tokenizer: Any) -> frozenset[int]:
    """What ends a passage: the token that each breaker is after a letter."""
    if not settings.is_active("dry_multiplier") or tokenizer is None:
        return frozenset()
    texts = DRY_BREAKERS if settings.dry_sequence_breakers is None else settings.dry_sequence_breakers
    return frozenset(ids[-1] for ids in _encoded(tokenizer, [f"a{text}" for text in texts]))


def _encoded(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """The ids of many short texts, in one call: other threads go on meanwhile."""
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []


def _stops(settings: GenerationConfig, tokenizer: Any) -> tuple[Stop, ...]:
    s = settings
    stops: list[Stop] = []
    if s.is_active("stop_strings"):
        texts = as_texts(s.stop_strings)
        if "" in texts:
            raise SettingError(f"stop_strings is {s.stop_strings!r}; each must be a text of at least one character.")
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise SettingError("stop_strings holds a lone surrogate, which is no character. Repair its encoding first.")
        stops.append(stopping.at_strings(texts, lambda ids: tokenizer.decode(ids, skip_special_tokens=False)))
    if s.stop_when is not None:
        stops.append(stopping.by_function(s.stop_when))
    stops.extend(stopping.by_criterion(function) for function in s.stopping_criteria or ())
    if s.cancel is not None:
        if not callable(getattr(s.cancel, "is_set", None)):
            raise SettingError(f"cancel is {s.cancel!r}; it must be a threading.Event, or have is_set() as one has.")
        stops.append(stopping.when_cancelled(s.cancel))
    return tuple(stops)


def _grammar(settings: GenerationConfig, tokenizer: Any, size: int | None) -> Grammar | None:
    for name in GRAMMARS:
        if settings.is_active(name):
            return Grammar.compile(name, getattr(settings, name), tokenizer, size=size, eos=settings.eos)
    return None
