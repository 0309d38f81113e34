"""A view's page as plain data, for a program that draws it by itself, as the studio does.

The parts are those of page/document.py, each with its kind, so that whoever can draw every kind can show every view. Texts
are escaped as for the other renderers.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np

from glassformer.page.document import Page, PagePart, escape_page
from glassformer.views.schema import object_schema

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
