"""GET /glass/views: which views a server can be asked for, and what each one's request takes.

It is read off the OpenAPI document, so a route that answers with a view is listed by that alone; the studio makes its forms
from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import COMPONENTS, EVENTS, JSON, PAGE, schema_answer
from glassformer.serving.http.views import ReadingRequest

router = APIRouter(tags=["glass"], prefix="/glass")
SHARED = frozenset(ReadingRequest.model_fields)  # what most requests have, whatever they ask for
NUMBERS = ("integer", "number")
SCALARS = ("text", "integer", "number", "boolean", "integer or text", "number or text")
KINDS = (*SCALARS, "choice", "list", "json")
FIELD = {
    "name": {"type": "string"},
    "kind": {"enum": list(KINDS)},  # what is typed into it
    "items": {"anyOf": [{"enum": list(SCALARS)}, {"type": "null"}]},  # of a list
    "required": {"type": "boolean"},
    "shared": {"type": "boolean"},  # whether most requests have it
    "description": {"type": ["string", "null"]},
    "default": {},
    "example": {},
    "choices": {"type": "array", "items": {"type": ["string", "number"]}},
    "minimum": {"type": ["number", "null"]},
    "maximum": {"type": ["number", "null"]},
}
ENTRY = {
    "name": {"type": "string"},  # of its route
    "title": {"type": "string"},
    "description": {"type": "string"},
    "fields": {"type": "array", "items": {"type": "object", "properties": FIELD, "required": list(FIELD)}},
}
LIST = {"type": "array", "items": {"type": "object", "properties": ENTRY, "required": list(ENTRY)}}


@router.get("/views", responses=schema_answer({"type": "object", "properties": {"views": LIST}, "required": ["views"]}))
async def views(request: Request) -> Json:
    """The views that this server can be asked for, each with the fields of its request."""
    return Json({"views": listed_views(request.app.openapi())})


def listed_views(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Of an OpenAPI document, the routes that answer a request with a view and its page."""
    views = []
    for path, operations in document["paths"].items():
        operation = operations.get("post", {})
        answers = operation.get("responses", {}).get("200", {}).get("content", {})
        if PAGE not in answers or EVENTS in answers:
            continue
        name = path.removeprefix("/glass/")
        title = name.replace("-", " ").replace("/", ", ").capitalize()
        request = _resolved(operation["requestBody"]["content"][JSON]["schema"], document)
        views.append(
            {
                "name": name, "title": title, "description": operation["description"].partition("\n\n")[0],
                "fields": _fields(request, document),
            }
        )  # fmt: skip
    return views


def _fields(request: dict[str, Any], document: dict[str, Any]) -> list[dict[str, Any]]:
    required = request.get("required", ())
    return [
        {
            "name": name,
            "required": name in required,
            "shared": name in SHARED and name not in required,
            **_field(field, document),
        }
        for name, field in request["properties"].items()
    ]


def _field(field: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """What a form has to know of a field; nothing is required of one that may be null."""
    options = [_resolved(option, document) for option in field.get("anyOf", [field])]
    choices = [choice for option in options for choice in option.get("enum", [option["const"]] if "const" in option else ())]
    kind = "choice" if choices else _kind(options)
    lists = [_resolved(option.get("items", {}), document) for option in options if option.get("type") == "array"]
    items = _kind(lists[0].get("anyOf", lists)) if kind == "list" else None
    if items is not None and items not in SCALARS:
        kind, items = "json", None
    return {
        "kind": kind,
        "items": items,
        "description": field.get("description"),
        "default": field.get("default"),
        "example": next(iter(field.get("examples", ())), None),
        "choices": choices,
        "minimum": _bound(options, "minimum", "exclusiveMinimum"),
        "maximum": _bound(options, "maximum", "exclusiveMaximum"),
    }


def _bound(options: Sequence[Mapping[str, Any]], *names: str) -> float | None:
    return next((option[name] for option in options for name in names if name in option), None)


def _kind(options: Sequence[Mapping[str, Any]]) -> str:
    """What is typed into a field that takes values of some types: the simplest of them.

    >>> _kind([{"type": "string"}, {"type": "array"}]), _kind([{"type": "integer"}, {"type": "string"}]), _kind([{}])
    ('text', 'integer or text', 'json')
    """
    types = {option.get("type") for option in options}
    axis = next((name for name in NUMBERS if name in types), None)
    if "string" in types:
        return f"{axis} or text" if axis and "array" not in types else "text"
    if axis or "boolean" in types:
        return axis or "boolean"
    return "list" if "array" in types else "json"


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    resolved: dict[str, Any] = document["components"]["schemas"][reference.removeprefix(COMPONENTS)] if reference else schema
    return resolved
