"""The JSON schema of a view, read off its dataclass: what is written, and what is promised, cannot differ."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from glassformer.views.view import View

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SIMPLE: Mapping[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # null: not a number, or infinite
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def schema(view: type[View]) -> dict[str, Any]:
    """What `view.to_dict()` gives, as a JSON schema."""
    parts: dict[str, Any] = {}
    found = _object(view, parts)
    found["properties"] = {"schema": {"const": view.SCHEMA}, **found["properties"]}
    found["required"] = ["schema", *found["required"]]
    return {"$schema": DRAFT, "title": view.SCHEMA, **found, "$defs": parts}


def _object(kind: type[Any], parts: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    told = [one for one in fields(kind) if one.metadata.get("stored", True)]
    return {
        "type": "object",
        "properties": {one.name: _of(hints[one.name], parts) for one in told},
        "required": [one.name for one in told],
        "additionalProperties": False,
    }


def _of(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    if hint in SIMPLE:
        return dict(SIMPLE[hint])
    if is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in parts:
            parts[name] = {}  # known before it is done: a tree holds trees
            parts[name] = _object(hint, parts)  # type: ignore[arg-type]
        return {"$ref": f"#/$defs/{name}"}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(one, parts) for one in inside]}
    if origin in (tuple, list) and (origin is list or inside[-1] is ...):
        return {"type": "array", "items": _of(inside[0], parts)}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_of(one, parts) for one in inside], "minItems": len(inside)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(inside[1], parts)}
    if getattr(origin, "__name__", "") == "ndarray":
        return {"type": "array"}
    raise TypeError(f"no JSON schema is known for {hint!r}.")
