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

import importlib
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from glassformer.decoding.shortlist import Ids, Shortlist
from glassformer.errors import SettingError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask: TypeAlias = npt.NDArray[np.bool_]


class Spelling(Protocol):
    """What is needed of a tokenizer: the bytes of each id, and how ids read one after another."""

    def __len__(self) -> int: ...

    @property
    def all_special_ids(self) -> list[int]: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def token_bytes(self, number: int) -> bytes: ...

    def decode(self, ids: Any, skip_special_tokens: bool = ..., clean_up_tokenization_spaces: bool | None = ...) -> Any: ...


class Grammar:
    """Made by `compile`; `guide()` begins a text."""

    def __init__(self, kind: str, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        self.kind = kind
        self.vocabulary = vocabulary
        self._matcher = matcher  # at the start, and there it stays

    @classmethod
    def compile(
        cls, kind: str, value: Any, tokenizer: Spelling, *, size: int | None = None, eos: Collection[int] = ()
    ) -> Grammar:
        """`kind`: the setting, `json_schema`, `regex`, `choices` or `grammar`; `size`: how many of the tokenizer's ids
        the model scores, by default all; `eos`: the ids that end a text."""
        source = SOURCES[kind](value)
        vocabulary = vocabulary_of(tokenizer, size, frozenset(eos))
        matcher = _made(kind, source, vocabulary.library)
        if message := matcher.get_error():
            place = _fault(_schema(value), message, vocabulary.library) if kind == "json_schema" else ""
            raise SettingError(_refusal(kind, message, place))
        made = cls(kind, vocabulary, matcher)
        made.guide().allowed()  # raises if no text can begin
        return made

    def guide(self) -> Guide:
        """A walk from the start."""
        return Guide(self, self._matcher.deep_copy())

    def __repr__(self) -> str:
        return f"Grammar({self.kind})"


class Guide:
    """Where one text stands in its grammar. The prompt is no part of the text."""

    __slots__ = ("_allowed", "_begun", "_grammar", "_matcher", "_taken", "done")

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self.done = False  # the text is whole, and nothing can follow
        self._grammar = grammar
        self._matcher = matcher
        self._taken = 0  # tokens
        self._begun = False  # whether one of them was text
        self._allowed: Mask | None = None  # found once for each place

    def allowed(self) -> Mask:
        """For each id whether it can stand next; not to be written to."""
        if self._allowed is None:
            words = self._grammar.vocabulary
            packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            bits = np.unpackbits(packed, count=words.places, bitorder="little").view(np.bool_)
            found = bits[: words.size]
            if words.opening is not None and not self._begun:
                bits[words.silent] = True
                found = bits[words.opening]
            found[words.ends] |= bits[words.end]
            self._allowed = found
        return self._allowed

    def shape(self, shortlist: Shortlist) -> Shortlist:
        """The candidates that the grammar allows. There may be more scores than ids; what stands for no text is out."""
        allowed, ids = self.allowed(), shortlist.ids
        if ids is not None:
            known = ids < allowed.size
            return shortlist.keep(known & allowed[np.where(known, ids, 0)])
        if (more := shortlist.scores.size - allowed.size) != 0:
            allowed = np.pad(allowed, (0, max(0, more)))[: shortlist.scores.size]
        return shortlist.keep(allowed)

    def accept(self, token: int) -> None:
        """Go on by this token."""
        words, place = self._grammar.vocabulary, token
        if not 0 <= token < words.size or not self.allowed()[token]:
            raise SettingError(
                f"{self._grammar.kind} does not allow token {token} after {self._taken} tokens. "
                "Give it one of those that Guide.allowed() marks."
            )
        if token in words.ends:
            place = words.end if self._matcher.is_accepting() else token  # which a Lark grammar can name
        elif token not in words.special:
            place = token if words.opening is None or self._begun else int(words.opening[token])
            self._begun = True
        if place != words.silent:
            self._matcher.consume_token(place)
            self._check()
            self.done = self._matcher.is_stopped()
        self._taken += 1
        self._allowed = None

    def fork(self) -> Guide:
        """Another walk from here, which goes its own way."""
        other = Guide(self._grammar, self._matcher.deep_copy())
        other.done, other._taken, other._begun, other._allowed = self.done, self._taken, self._begun, self._allowed
        return other

    def _check(self) -> None:
        """Say what stopped the walk before the text was whole."""
        if not self._matcher.is_error():
            return
        kind, message = self._grammar.kind, self._matcher.get_error()
        if message.startswith("NoExtension"):
            raise SettingError(
                f"{kind} leads nowhere after {self._taken} tokens: no text fits, or this tokenizer cannot spell it. "
                "Allow more, or use a model with a byte-level tokenizer."
            )
        raise SettingError(f"{kind} cannot be followed after {self._taken} tokens: {_reason(message)}. {SMALLER}")


# The vocabulary -----------------------------------------------------------------------------------------------------


class Vocabulary(NamedTuple):
    """All tokens as llguidance sees them: a row of places, the model's ids first.

    SentencePiece's decoders drop the space that a text begins with, so that `▁yes` reads `yes` at the start and ` yes`
    further on. There each token with a space has a second place, for the start alone; where nothing is left of it, that
    is the silent one.
    """

    library: LLTokenizer
    size: int
    places: int
    ends: Ids  # the ids that end a text
    special: frozenset[int]  # the ids that are no text
    opening: Ids | None  # the place of each id at the start of a text; None where it is the id itself

    @property
    def silent(self) -> int:
        return self.size

    @property
    def end(self) -> int:
        """The place that stands for every id that ends a text."""
        return self.size + 1


WIDEST = 1000  # bytes of a token; llguidance cannot hold longer ones, and they are never allowed
MARK = b"\xff"  # what it marks special tokens with; no text has this byte
_KNOWN: WeakKeyDictionary[Spelling, dict[tuple[object, ...], Vocabulary]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Spelling, size: int | None, eos: frozenset[int]) -> Vocabulary:
    """Made once for each tokenizer, because it takes up to a second."""
    key = (size, eos, len(tokenizer), *tokenizer.all_special_ids)
    known = _KNOWN.setdefault(tokenizer, {})
    if key not in known:
        every = 1 + max(len(tokenizer) - 1, *tokenizer.get_added_vocab().values(), -1)  # there may be holes before the last
        known[key] = _read(tokenizer, every if size is None else size, eos)
    return known[key]


def _read(tokenizer: Spelling, size: int, eos: frozenset[int]) -> Vocabulary:
    read = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    spelt = [tokenizer.token_bytes(number) for number in range(size)]
    spelt = [raw if len(raw) <= WIDEST and MARK not in raw else b"" for raw in spelt]
    named = {*tokenizer.all_special_ids, *eos}
    letter = next((number for number, raw in enumerate(spelt) if raw.isalpha() and number not in named), None)
    if letter is None:
        raise SettingError("this tokenizer has no letters, so no grammar can guide it. Use a model with another.")

    def after_letter(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
        """How each of these reads behind a letter."""
        rows = [[letter], *([letter, number] for number in numbers)]
        alone, *texts = read(rows)
        return ((row[-1], text.removeprefix(alone)) for row, text in zip(rows[1:], texts, strict=True))

    added = (number for number in tokenizer.get_added_vocab().values() if number < size)
    hidden = (number for number, text in after_letter(added) if not text)
    special = frozenset(number for number in (*named, *hidden) if 0 <= number < size)
    words = [number for number, raw in enumerate(spelt) if raw and number not in special]
    tried = (number for number in words if len(spelt[number]) < 3 or number % 997 == 0)  # all short ones, and some others
    for number, text in after_letter(tried):
        if text.encode() != spelt[number] and _whole(spelt[number]):
            raise SettingError(
                f"no grammar can guide this tokenizer: it decodes token {number} to {text!r}, where {spelt[number]!r} "
                "was expected. Use a model with a byte-level or SentencePiece tokenizer."
            )
    opening: Ids | None = None
    second: list[bytes] = []
    spaced = [number for number in words if b" " in spelt[number]]
    sample = next((number for number in spaced if spelt[number][:1] == b" " and spelt[number][1:].isalpha()), letter)
    if read([sample]).encode() != spelt[sample]:
        opening = np.arange(size)
        for number, text in zip(spaced, read([[number] for number in spaced]), strict=True):
            opening[number] = size + 2 + len(second) if text else size
            second += [text.encode()] if text else []
    library = _library([*spelt, b"", b"", *second], special, end=size + 1)
    ends = np.array([number for number in sorted(eos) if 0 <= number < size], np.int64)
    return Vocabulary(library, size, size + 2 + len(second), ends, special, opening)


def _whole(raw: bytes) -> bool:
    """Whether these bytes are whole characters."""
    return "\N{REPLACEMENT CHARACTER}" not in raw.decode(errors="replace")


class _Bytes(NamedTuple):
    """A tokenizer as llguidance wants it: bytes alone."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = True


def _llguidance() -> ModuleType:
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise SettingError("grammars need llguidance. Install it: pip install 'glassformer[grammar]'.") from error


def _library(tokens: list[bytes], special: frozenset[int], end: int) -> LLTokenizer:
    given: Any = _Bytes(tokens, sorted(special), end)
    llguidance = _llguidance()
    try:
        library: LLTokenizer = llguidance.LLTokenizer(given)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its panics are no Exception
        raise SettingError(f"no grammar can guide this tokenizer: {error}. Use a model with another.") from error
    return library


# What llguidance is given -------------------------------------------------------------------------------------------

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
FREE = '\n%llguidance {"no_forcing": true}\n'  # every way to cut a text into tokens is allowed
LONGEST = 1_000_000  # characters


def _schema(value: Any) -> dict[str, Any]:
    if callable(getattr(value, "model_json_schema", None)):  # a model of pydantic
        value = value.model_json_schema()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SettingError(f"json_schema is no JSON: {error}. Give a dictionary, or JSON text.") from error
    if value is True:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError(f"json_schema is {value!r}; it must be a dictionary, JSON text of one, or True for any JSON.")
    return dict(value)


def _of_schema(value: Any) -> str:
    schema = _schema(value)
    options = schema.get("x-guidance", {})
    if isinstance(options, Mapping):
        schema["x-guidance"] = COMPACT | dict(options)
    try:
        text = json.dumps({"name": "schema", "json_schema": schema}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(f"json_schema cannot be written as JSON: {error}. Give what json.dumps takes.") from error
    return _source("json_schema", "start: @schema", _text("json_schema", text))


def _of_regex(value: Any) -> str:
    text = _text("regex", value)
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise SettingError("regex ends with a lone backslash. Write two for one that is meant, or none.")
    return _source("regex", f"start: /{_llguidance().regex_to_lark(text, 'd')}/")


def _of_choices(value: Any) -> str:
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection) or not value:
        raise SettingError(f"choices is {value!r}; it must be a list of at least one text.")
    texts = [_text("choices", text) for text in value]
    if "" in texts:
        raise SettingError("choices has an empty text, which no model can choose. Leave it out.")
    return _source("choices", "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in texts))


def _of_lark(value: Any) -> str:
    text = _text("grammar", value)
    if "::=" in text:  # llama.cpp's GBNF
        _llguidance()
        convert = importlib.import_module("llguidance.gbnf_to_lark")
        try:
            text = convert.gbnf_to_lark(text).removeprefix("%llguidance {}")
        except (convert.GbnfToLarkError, RecursionError) as error:
            raise SettingError(f"grammar is no GBNF: {_reason(str(error))}. Mend it, or write Lark.") from error
    return _source("grammar", text)


SOURCES: Mapping[str, Callable[[Any], str]] = {
    "json_schema": _of_schema,
    "regex": _of_regex,
    "choices": _of_choices,
    "grammar": _of_lark,
}


def _text(kind: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{kind} has {value!r}, which is no text. Give text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"{kind} holds a lone surrogate, which is no character. Repair it first.") from error
    return value


def _source(kind: str, lark: str, *further: str) -> str:
    """Grammars as llguidance takes them: a Lark one, and those that it names."""
    source = f'{{"grammars": [{", ".join([json.dumps({"lark_grammar": lark + FREE}), *further])}]}}'
    if len(source) > LONGEST:
        raise SettingError(f"{kind} takes {len(source):,} characters; {LONGEST:,} is the most. {SMALLER}")
    return source


# Making it ready ----------------------------------------------------------------------------------------------------

PATIENCE = 20.0  # seconds
STACK = 512 << 20  # bytes: rules that lead to rules are followed by recursion, up to 50,000 deep
SEARCH = 2.0  # seconds to find the part of a schema that is broken
SHARED = ("$defs", "definitions")
SMALLER = "Make it smaller, or its repetitions shorter."
MENDS = {
    "json_schema": "Mend it, or leave out what is not supported: "
    "https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md.",
    "regex": "Write it as https://docs.rs/regex/latest/regex/#syntax has it, without boundaries such as \\b.",
    "choices": SMALLER,
    "grammar": "Mend it; its syntax is at https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.",
}
TOO_MUCH = re.compile(r"too (big|large|many|deeply)|fuel|precomputation|limit exceeded|items; max|u16::MAX")
_STARTING = threading.Lock()


def _made(kind: str, source: str, library: LLTokenizer) -> LLMatcher:
    """Made on a thread of its own, which has room for deep recursion, and can be left behind when it takes too long."""
    llguidance = _llguidance()
    limits = llguidance.LLParserLimits(verbose_errors=False)
    found: list[Any] = []

    def make() -> None:
        try:
            found.append(llguidance.LLMatcher(library, source, log_level=0, limits=limits))
        except BaseException as error:
            found.append(error)

    with _STARTING:
        usual = threading.stack_size(STACK)
        try:
            worker = threading.Thread(target=make, daemon=True)
            worker.start()
        except RuntimeError as error:
            raise SettingError(f"there is no memory left to make {kind} ready ({error}). Free some.") from error
        finally:
            threading.stack_size(usual)
    worker.join(PATIENCE)
    if not found:
        raise SettingError(f"{kind} was not ready after {PATIENCE:g} seconds. {SMALLER}")
    if isinstance(found[0], BaseException):
        raise SettingError(_refusal(kind, str(found[0]))) from found[0]
    matcher: LLMatcher = found[0]
    return matcher


def _fault(schema: Mapping[str, Any], message: str, library: LLTokenizer) -> str:
    """Where a schema is broken: the innermost part that is refused by itself, and for the same reason."""
    shared = {name: schema[name] for name in SHARED if name in schema}
    place, until = "", 0.0 if TOO_MUCH.search(message) else monotonic() + SEARCH
    parts = _parts(schema)
    while monotonic() < until and (found := next(parts, None)):
        step, part = found
        if _made("json_schema", _of_schema(shared | part), library).get_error() == message:
            place, parts = f"{place or '#'}/{step}", _parts(part)
    return place


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas inside a schema and where they stand, those that others refer to first."""
    for name in sorted(schema, key=lambda name: name not in SHARED):
        inner = schema[name]
        if name in (*SHARED, "properties", "patternProperties") and isinstance(inner, dict):
            spelt = ((str(key).replace("~", "~0").replace("/", "~1"), part) for key, part in inner.items())
            yield from ((f"{name}/{key}", part) for key, part in spelt if isinstance(part, dict))
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(inner, list):
            yield from ((f"{name}/{at}", part) for at, part in enumerate(inner) if isinstance(part, dict))
        elif name in ("items", "additionalProperties") and isinstance(inner, dict):
            yield name, inner


def _refusal(kind: str, message: str, place: str = "") -> str:
    mend = SMALLER if TOO_MUCH.search(message) else MENDS[kind]
    line = re.match(r"(?:at )?(\d+)\((\d+)\): ", message)
    if line and kind == "grammar":
        place = f"line {line[1]}, column {line[2]}"
    return f"{kind} cannot be followed{place and f' at {place}'}: {_reason(message)}. {mend}"


def _reason(message: str) -> str:
    """llguidance's words, as part of a sentence."""
    if found := re.search(r"regex parse error:\n(.*?)\nerror: ([^\n]*)", message, re.DOTALL):
        marked = next((pair for pair in pairwise(found[1].splitlines()) if set(pair[1]) in ({"^"}, {"^", " "})), ("", "^"))
        return f"{found[2]}, at {marked[0][marked[1].index('^') :][:40]!r}"
    first = message.partition("\n")[0]
    first = re.sub(r'^(at )?\d+\(\d+\): |invalid regex ".*" \(in regex\): |^panic: ', "", first)
    return re.split("; (?:either|consider)", first)[0][:300].rstrip(". ")
