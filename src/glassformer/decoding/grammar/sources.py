"""A JSON schema, a regular expression, choices or a Lark grammar as llguidance takes them; and where a schema is broken."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from glassformer.decoding.grammar.library import SMALLER, TOO_MUCH, build_matcher, load_llguidance, reason
from glassformer.ground.errors import SettingError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

SEARCH = 2.0  # seconds to find the part of a schema that is broken
SHARED = ("$defs", "definitions")  # where a schema keeps the parts that others refer to
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
FREE = '\n%llguidance {"no_forcing": true}\n'  # every way to cut a text into tokens is allowed
LONGEST = 1_000_000  # characters


def json_schema_of(value: Any) -> dict[str, Any]:
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


def _from_schema(value: Any) -> str:
    schema = json_schema_of(value)
    options = schema.get("x-guidance", {})
    if isinstance(options, Mapping):
        schema["x-guidance"] = COMPACT | dict(options)
    try:
        text = json.dumps({"name": "schema", "json_schema": schema}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(f"json_schema cannot be written as JSON: {error}. Give what json.dumps takes.") from error
    json.loads(text, parse_int=_check_number, parse_float=_check_number)
    return _source("json_schema", "start: @schema", _text("json_schema", text))


def _check_number(digits: str) -> None:
    """Refuse the one number that overflows llguidance's stack, and with it ends the process."""
    if float(digits) == -(2.0**63):
        raise SettingError(f"json_schema holds {digits}, which no grammar can be made of. Use a number nearer to zero.")


def _from_regex(value: Any) -> str:
    text = _text("regex", value)
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise SettingError("regex ends with a lone backslash. Write two for one that is meant, or none.")
    return _source("regex", f"start: /{load_llguidance().regex_to_lark(text, 'd')}/")


def _from_choices(value: Any) -> str:
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection) or not value:
        raise SettingError(f"choices is {value!r}; it must be a list of at least one text.")
    texts = [_text("choices", text) for text in value]
    if "" in texts:
        raise SettingError("choices has an empty text, which no model can choose. Leave it out.")
    return _source("choices", "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in texts))


def _from_lark(value: Any) -> str:
    text = _text("grammar", value)
    if "::=" in text:  # llama.cpp's GBNF
        load_llguidance()
        convert = importlib.import_module("llguidance.gbnf_to_lark")
        try:
            text = convert.gbnf_to_lark(text).removeprefix("%llguidance {}")
        except (convert.GbnfToLarkError, RecursionError) as error:
            raise SettingError(f"grammar is no GBNF: {reason(str(error))}. Fix it, or write Lark.") from error
    return _source("grammar", text)


SOURCES: Mapping[str, Callable[[Any], str]] = {
    "json_schema": _from_schema,
    "regex": _from_regex,
    "choices": _from_choices,
    "grammar": _from_lark,
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


def locate_fault(schema: Mapping[str, Any], message: str, ll_tokenizer: LLTokenizer) -> str:
    """Where a schema is broken: the innermost part that is refused by itself, and for the same reason."""
    shared = {name: schema[name] for name in SHARED if name in schema}
    place, until = "", 0.0 if TOO_MUCH.search(message) else monotonic() + SEARCH
    parts = _parts(schema)
    while monotonic() < until and (inner := next(parts, None)):
        step, part = inner
        if build_matcher("json_schema", _from_schema(shared | part), ll_tokenizer).get_error() == message:
            place, parts = f"{place or '#'}/{step}", _parts(part)
    return place


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas inside a schema and where they stand, those that others refer to first."""
    for name in sorted(schema, key=lambda name: name not in SHARED):
        inner = schema[name]
        if name in (*SHARED, "properties", "patternProperties") and isinstance(inner, dict):
            named = ((str(key).replace("~", "~0").replace("/", "~1"), part) for key, part in inner.items())
            yield from ((f"{name}/{key}", part) for key, part in named if isinstance(part, dict))
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(inner, list):
            yield from ((f"{name}/{index}", part) for index, part in enumerate(inner) if isinstance(part, dict))
        elif name in ("items", "additionalProperties") and isinstance(inner, dict):
            yield name, inner
