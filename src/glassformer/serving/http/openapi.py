"""The OpenAPI document: what each route answers, and in which form it says that it cannot.

A route under /glass answers with a view, whose schema stands among the document's components under its name and "Json", or,
where `PAGE` is accepted, with the view's page.
Other routes give an example, from which their schema is derived, so that the two cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, TypeAlias

from fastapi import FastAPI

from glassformer.ground.operations import import_files
from glassformer.see.schema import page_schema, schema
from glassformer.see.view import ArrayView, View
from glassformer.serving.http.errors import Dialect, Problem, dialect_of

Responses: TypeAlias = dict[int | str, dict[str, Any]]
COMPONENTS = "#/components/schemas/"
JSON = "application/json"
PAGE = "application/vnd.glassformer.page+json"
EVENTS = "text/event-stream"
VIEWS = "glassformer.see"  # the package that has them
METHODS = ("get", "head", "post", "delete")
REFUSED = "The request cannot be honoured: what is wrong with it, in a sentence."
OTHER_ERROR = "Any other error, in the same form: no key, no such model, a full queue."


def view_response(view: type[View], *, streams: bool = False) -> Responses:
    """Of a route that answers with a view; on request with its page, or as a stream of events."""
    answer = schema_answer(view_reference(view), streams=streams)
    answer[200]["content"][PAGE] = {"schema": {"$ref": f"{COMPONENTS}PageJson"}}
    return answer


def view_reference(view: type[View]) -> dict[str, Any]:
    return {"$ref": f"{COMPONENTS}{view.__name__}Json"}


def example_answer(example: Any, *, streams: bool = False, stream_type: str = EVENTS) -> Responses:
    """Of a route that answers in the form of an example."""
    return schema_answer({**shape_of(example), "example": example}, streams=streams, stream_type=stream_type)


def schema_answer(answer: dict[str, Any], *, streams: bool = False, stream_type: str = EVENTS) -> Responses:
    content: dict[str, Any] = {JSON: {"schema": answer}}
    if streams:
        content[stream_type] = {"schema": {"type": "string"}}
    return {200: {"content": content}}


def text_answer(media_type: str) -> Responses:
    """Of a route that answers with something else than JSON."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


def shape_of(example: Any) -> dict[str, Any]:
    """The schema of values like an example; null stands for a text that may be missing.

    >>> shape_of({"tokens": [5], "text": None})["properties"]
    {'tokens': {'type': 'array', 'items': {'type': 'integer'}}, 'text': {'type': ['string', 'null']}}
    """
    match example:
        case dict():
            properties = {name: shape_of(value) for name, value in example.items()}
            return {"type": "object", "properties": properties, "required": list(example)}
        case [first, *_]:
            return {"type": "array", "items": shape_of(first)}
        case list():
            return {"type": "array"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case None:
            return {"type": ["string", "null"]}
    return {"type": "string"}


class DocumentedApp(FastAPI):
    """An app whose document says what is true of it: each dialect's errors, and the views' schemas."""

    dialects: Iterable[Dialect] = ()

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            _document_errors(document, self.dialects)
            _add_views(document["components"]["schemas"])
            _add_page(document["components"]["schemas"])
            self.openapi_schema = document
        return self.openapi_schema


def _document_errors(document: dict[str, Any], dialects: Iterable[Dialect]) -> None:
    """Every error in its dialect's form; a request that does not fit is answered with 400."""
    for path, operations in document["paths"].items():
        error = shape_of(dialect_of(path, dialects).error_body(Problem(400, "what is wrong, and how to mend it")))
        for method in METHODS:
            if (operation := operations.get(method)) is None:
                continue
            if operation["responses"].pop("422", None) is not None:
                operation["responses"]["400"] = _error(
                    "The request cannot be honoured: what is wrong with it, in a sentence.", error
                )
            operation["responses"]["default"] = _error(OTHER_ERROR, error)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _error(description: str, error: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": error}}}


def view_types() -> dict[str, type[View]]:
    """Every view of this package by the name of its class."""
    import_files(VIEWS, lambda source: b"View):\n" in source)
    kinds = [*View.__subclasses__(), *ArrayView.__subclasses__()]
    views = [kind for kind in kinds if is_dataclass(kind) and kind.__module__.startswith(VIEWS)]
    return {view.__name__: view for view in sorted(views, key=lambda view: view.__name__)}


def _add_views(components: dict[str, Any]) -> None:
    """Every view's schema by its name and "Json", and what it is made of by the name of its class."""
    for name, view in view_types().items():
        _add(components, f"{name}Json", schema(view))


def _add_page(components: dict[str, Any]) -> None:
    """A page's schema, and its parts by the names of their classes after "Page"."""
    _add(components, "PageJson", page_schema(), "Page")


def _add(components: dict[str, Any], name: str, root: dict[str, Any], prefix: str = "") -> None:
    """A schema, and what it defines under names with a prefix."""
    root = json.loads(json.dumps(root).replace("#/$defs/", f"{COMPONENTS}{prefix}"))
    parts = {f"{prefix}{part}": definition for part, definition in root.pop("$defs").items()}
    for each, definition in {name: root, **parts}.items():
        definition.pop("$schema", None)
        if components.setdefault(each, definition) != definition:
            raise AssertionError(f"two schemas are called {each}. Rename one of the classes.")
