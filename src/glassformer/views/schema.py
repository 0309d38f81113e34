"""The JSON schema of a view, derived from its dataclass, so that the two cannot differ."""

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
    """The schema of a dataclass; those that it holds are put among the definitions."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.metadata.get("stored", True)]
    return {
        "type": "object",
        "properties": {name: _value(hints[name], definitions) for name in names},
        "required": names,
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
