"""llguidance, which walks grammars: how it is loaded, shown a model's tokens, given a grammar, and what its messages
mean."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from glassformer.decoding.shortlist import Ids
from glassformer.ground.errors import SettingError, needed_for
from glassformer.ground.ownership import stack_size

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

PATIENCE = 20.0  # seconds that a grammar may take to be made ready
STACK = 512 << 20  # bytes: rules that lead to rules are followed by recursion, up to 50,000 deep
SMALLER = "Make it smaller, or its repetitions shorter."
FIXES = {
    "json_schema": "Fix it, or leave out what is not supported: "
    "https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md.",
    "regex": "Write it as https://docs.rs/regex/latest/regex/#syntax has it, without boundaries such as \\b.",
    "choices": SMALLER,
    "grammar": "Fix it; its syntax is at https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.",
}
TOO_MUCH = re.compile(r"too (big|large|many|deeply)|fuel|precomputation|limit exceeded|items; max|u16::MAX")


class _Bytes(NamedTuple):
    """A tokenizer in the form that llguidance takes: bytes alone."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = True


def load_llguidance() -> ModuleType:
    with needed_for("a grammar"):
        return importlib.import_module("llguidance")


def build_tokenizer(tokens: list[bytes], special: frozenset[int], end: int) -> LLTokenizer:
    wrapper: Any = _Bytes(tokens, sorted(special), end)
    llguidance = load_llguidance()
    try:
        ll_tokenizer: LLTokenizer = llguidance.LLTokenizer(wrapper)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its panics are no Exception
        raise SettingError(f"no grammar can guide this tokenizer: {error}. Use a model with another.") from error
    return ll_tokenizer


def build_matcher(kind: str, source: str, ll_tokenizer: LLTokenizer) -> LLMatcher:
    """Made on a thread of its own, which has room for deep recursion, and can be left behind when it takes too long."""
    llguidance = load_llguidance()
    limits = llguidance.LLParserLimits(verbose_errors=False)
    results: list[Any] = []

    def make() -> None:
        try:
            results.append(llguidance.LLMatcher(ll_tokenizer, source, log_level=0, limits=limits))
        except BaseException as error:
            results.append(error)

    worker = threading.Thread(target=make, daemon=True)
    try:
        with stack_size(STACK):
            worker.start()
    except RuntimeError as error:
        raise SettingError(f"there is no memory left to make {kind} ready ({error}). Free some.") from error
    worker.join(PATIENCE)
    if not results:
        raise SettingError(f"{kind} was not ready after {PATIENCE:g} seconds. {SMALLER}")
    if isinstance(results[0], BaseException):
        raise SettingError(refusal(kind, str(results[0]))) from results[0]
    matcher: LLMatcher = results[0]
    return matcher


def refusal(kind: str, message: str, place: str = "") -> str:
    """Why a grammar is refused, and what to do about it."""
    fix = SMALLER if TOO_MUCH.search(message) else FIXES[kind]
    line = re.match(r"(?:at )?(\d+)\((\d+)\): ", message)
    if line and kind == "grammar":
        place = f"line {line[1]}, column {line[2]}"
    return f"{kind} cannot be followed{place and f' at {place}'}: {reason(message)}. {fix}"


def reason(message: str) -> str:
    """llguidance's words, as part of a sentence."""
    if match := re.search(r"regex parse error:\n(.*?)\nerror: ([^\n]*)", message, re.DOTALL):
        marked = next((pair for pair in pairwise(match[1].splitlines()) if set(pair[1]) in ({"^"}, {"^", " "})), ("", "^"))
        return f"{match[2]}, at {marked[0][marked[1].index('^') :][:40]!r}"
    first = message.partition("\n")[0]
    first = re.sub(r'^(at )?\d+\(\d+\): |invalid regex ".*" \(in regex\): |^panic: ', "", first)
    return re.split("; (?:either|consider)", first)[0][:300].rstrip(". ")


class GrammarTokenizer(Protocol):
    """What is needed of a tokenizer: the bytes of each id, and how ids read one after another."""

    def __len__(self) -> int: ...

    @property
    def all_special_ids(self) -> list[int]: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def decode(self, ids: Any, skip_special_tokens: bool = ..., clean_up_tokenization_spaces: bool | None = ...) -> Any: ...


class GrammarVocabulary(NamedTuple):
    """All tokens as llguidance sees them: a row of slots, the model's ids first.

    SentencePiece's decoders drop the space that a text begins with, so that `▁yes` reads `yes` at the start and ` yes`
    further on. There each token with a space has a second slot, for the start alone; where nothing is left of it, that
    is the silent one.
    """

    ll_tokenizer: LLTokenizer
    size: int
    slots: int
    ends: Ids  # the ids that end a text
    special: frozenset[int]  # the ids that are no text
    opening: Ids | None  # the slot of each id at the start of a text; None where it is the id itself

    @property
    def silent(self) -> int:
        return self.size

    @property
    def end(self) -> int:
        """The slot that stands for every id that ends a text."""
        return self.size + 1


MAX_TOKEN_BYTES = 1000  # bytes of a token; llguidance cannot hold longer ones, and they are never allowed
MARK = b"\xff"  # what it marks special tokens with; no text has this byte
_CACHE: WeakKeyDictionary[GrammarTokenizer, dict[tuple[object, ...], GrammarVocabulary]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: GrammarTokenizer, size: int | None, eos: frozenset[int]) -> GrammarVocabulary:
    """Made once for each tokenizer, because it takes up to a second."""
    key = (size, eos, len(tokenizer), *tokenizer.all_special_ids)
    cached = _CACHE.setdefault(tokenizer, {})
    if key not in cached:
        id_count = 1 + max(
            len(tokenizer) - 1, *tokenizer.get_added_vocab().values(), -1
        )  # there may be holes before the last
        cached[key] = _read(tokenizer, id_count if size is None else size, eos)
    return cached[key]


def _read(tokenizer: GrammarTokenizer, size: int, eos: frozenset[int]) -> GrammarVocabulary:
    read = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    token_bytes = [tokenizer.token_bytes(token) for token in range(size)]
    token_bytes = [raw if len(raw) <= MAX_TOKEN_BYTES and MARK not in raw else b"" for raw in token_bytes]
    special_ids = {*tokenizer.all_special_ids, *eos}
    letter = next((token for token, raw in enumerate(token_bytes) if raw.isalpha() and token not in special_ids), None)
    if letter is None:
        raise SettingError("this tokenizer has no letters, so no grammar can guide it. Use a model with another.")

    def after_letter(tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
        """How each of these reads after a letter."""
        rows = [[letter], *([letter, token] for token in tokens)]
        alone, *texts = read(rows)
        return ((row[-1], text.removeprefix(alone)) for row, text in zip(rows[1:], texts, strict=True))

    added = (token for token in tokenizer.get_added_vocab().values() if token < size)
    hidden = (token for token, text in after_letter(added) if not text)
    special = frozenset(token for token in (*special_ids, *hidden) if 0 <= token < size)
    text_tokens = [token for token, raw in enumerate(token_bytes) if raw and token not in special]
    samples = (
        token for token in text_tokens if len(token_bytes[token]) < 3 or token % 997 == 0
    )  # all short ones, and some others
    for token, text in after_letter(samples):
        if text.encode() != token_bytes[token] and _is_whole(token_bytes[token]):
            raise SettingError(
                f"no grammar can guide this tokenizer: it decodes token {token} to {text!r}, where {token_bytes[token]!r} "
                "was expected. Use a model with a byte-level or SentencePiece tokenizer."
            )
    opening: Ids | None = None
    opening_bytes: list[bytes] = []
    spaced = [token for token in text_tokens if b" " in token_bytes[token]]
    sample = next((token for token in spaced if token_bytes[token][:1] == b" " and token_bytes[token][1:].isalpha()), letter)
    if read([sample]).encode() != token_bytes[sample]:
        opening = np.arange(size)
        for token, text in zip(spaced, read([[token] for token in spaced]), strict=True):
            opening[token] = size + 2 + len(opening_bytes) if text else size
            opening_bytes += [text.encode()] if text else []
    ll_tokenizer = build_tokenizer([*token_bytes, b"", b"", *opening_bytes], special, end=size + 1)
    ends = np.array([token for token in sorted(eos) if 0 <= token < size], np.int64)
    return GrammarVocabulary(ll_tokenizer, size, size + 2 + len(opening_bytes), ends, special, opening)


def _is_whole(raw: bytes) -> bool:
    """Whether these bytes are whole characters."""
    return "\N{REPLACEMENT CHARACTER}" not in raw.decode(errors="replace")
