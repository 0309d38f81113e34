"""A view's JSON schema, derived from its dataclass so that the two cannot differ; and its page as plain data.

The studio draws a page by itself. The parts are those of page/document.py, each with its kind, so that whoever can draw
every kind can show every view. Texts are escaped as for the other renderers.
"""

from __future__ import annotations

import base64
import math
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from glassformer.page.document import Page, PagePart, escape_page
from glassformer.see.view import View

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SIMPLE: Mapping[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # null: not a number, or infinite
    str: {"type": "string"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    type(None): {"type": "null"},
    Any: {},
}


def schema(view: type[View]) -> dict[str, Any]:
    """The JSON schema of `view.to_dict()`."""
    definitions: dict[str, Any] = {}
    root = object_schema(view, definitions)
    root["properties"] = {"schema": {"const": view.SCHEMA}, **root["properties"]}
    root["required"] = ["schema", *root["required"]]
    return {"$schema": DRAFT, "title": view.SCHEMA, **root, "$defs": definitions}


def object_schema(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dataclass; those that it holds are put among the definitions.

    A field that was `added` later is not required: what was stored before lacks it.
    """
    hints = get_type_hints(kind)
    stored = [field for field in fields(kind) if field.metadata.get("stored", True)]
    return {
        "type": "object",
        "properties": {field.name: _value(hints[field.name], definitions) for field in stored},
        "required": [field.name for field in stored if not field.metadata.get("added")],
        "additionalProperties": False,
    }


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in SIMPLE:
        return dict(SIMPLE[hint])
    if is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}  # registered before it is complete: a tree holds trees
            definitions[name] = object_schema(hint, definitions)  # type: ignore[arg-type]
        return {"$ref": f"#/$defs/{name}"}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_value(item, definitions) for item in inside]}
    if origin in (tuple, list) and (origin is list or inside[-1] is ...):
        return {"type": "array", "items": _value(inside[0], definitions)}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_value(item, definitions) for item in inside], "minItems": len(inside)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _value(inside[1], definitions)}
    if getattr(origin, "__name__", "") in ("ndarray", "NDArray"):  # an alias of its own in newer numpy
        return {"type": "array"}
    raise TypeError(f"no JSON schema is known for {hint!r}.")


SCHEMA = "glassformer.page/1"
ARRAY_SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"type": "array", "items": {"type": "integer"}},
        "bytes": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["shape", "bytes"],
    "additionalProperties": False,
}


def part_kind(part: type[Any]) -> str:
    """
    >>> from glassformer.page.document import LineChart
    >>> part_kind(LineChart)
    'line_chart'
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", part.__name__).lower()


KINDS = {part: part_kind(part) for part in get_args(PagePart)}


def page_data(page: Page, python: str = "") -> dict[str, Any]:
    """`python`: what gives the same view; empty where nobody said it."""
    return {"schema": SCHEMA, "python": python, **_data(escape_page(page))}


def page_schema() -> dict[str, Any]:
    """The JSON schema of `page_data`."""
    definitions: dict[str, Any] = {}
    root = object_schema(Page, definitions)
    root["properties"] = {"schema": {"const": SCHEMA}, "python": {"type": "string"}, **root["properties"]}
    root["required"] = ["schema", "python", *root["required"]]
    for part, kind in KINDS.items():
        definition = definitions[part.__name__]
        definition["properties"] = {"kind": {"const": kind}, **definition["properties"]}
        definition["required"] = ["kind", *definition["required"]]
    definitions["ThumbnailGrid"]["properties"]["maps"] = ARRAY_SCHEMA
    return {"title": SCHEMA, **root, "$defs": definitions}


def _data(value: Any) -> Any:
    """A part, or what it consists of; an array of bytes in base64; NaN and infinity as None."""
    if is_dataclass(value):
        kind = {"kind": KINDS[type(value)]} if type(value) in KINDS else {}
        return {**kind, **{field.name: _data(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value, np.uint8).tobytes()
        return {"shape": list(value.shape), "bytes": base64.b64encode(content).decode("ascii")}
    if isinstance(value, (tuple, list)):
        return [_data(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
