"""llguidance, which walks grammars: how it is loaded, given a tokenizer and a grammar, and what its messages mean."""

from __future__ import annotations

import importlib
import re
import threading
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.ground.errors import SettingError, needed_for
from glassformer.ground.locks import ForkSafeLock

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
_STARTING = ForkSafeLock()


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

    with _STARTING:
        default_size = threading.stack_size(STACK)
        try:
            worker = threading.Thread(target=make, daemon=True)
            worker.start()
        except RuntimeError as error:
            raise SettingError(f"there is no memory left to make {kind} ready ({error}). Free some.") from error
        finally:
            threading.stack_size(default_size)
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
