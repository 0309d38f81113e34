"""A view as a response: its data, or its page where the client accepts `PAGE`, with the Python that gives the same."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from glassformer.see.schema import SCHEMA, page_data
from glassformer.see.view import View
from glassformer.serving.http.errors import Json
from glassformer.serving.http.inspection import SiteChange
from glassformer.serving.http.openapi import PAGE

OPTIONS = "raw=raw, system=system, template=chat_template_kwargs"  # how a text becomes a prompt


@dataclass(frozen=True)
class ViewForm:
    """In which of the two forms a request wants its view."""

    page: bool
    python: str  # the call that gives the same view, with the request's fields by their names; empty: not said
    body: BaseModel | None

    @classmethod
    def of(cls, request: Request, body: BaseModel | None = None, python: str = "") -> ViewForm:
        accepted = (entry.partition(";")[0].strip() for entry in request.headers.get("accept", "").split(","))
        return cls(PAGE in accepted, python, body)

    def data(self, view: View) -> dict[str, Any]:
        if not self.page:
            return view.to_dict()
        python = python_line(self.python, self.body) if self.python and self.body else ""
        return page_data(view.page(everything=True), python)

    def answer(self, data: dict[str, Any]) -> Json:
        return Json(data, media_type=PAGE if data.get("schema") == SCHEMA else None)


def python_line(template: str, body: BaseModel) -> str:
    """A call in which a request's fields stand by their names, with their values instead.

    What the request left at its default is left out where Python does not need it. `model` is the model with the request's
    changes.

    >>> class Request(BaseModel):
    ...     text: str
    ...     layer: int = 0
    ...     change: dict[str, SiteChange] = {}
    >>> python_line("model.read(text, raw=True).norms(layer=layer)", Request(text="it's", layer=0))
    'model.read("it\\'s", raw=True).norms()'
    >>> python_line("model.look(text)", Request(text="a", change={"blocks.0.residual": SiteChange(scale=0)}))
    "model.changed({'blocks.0.residual': Change(scale=0.0)}).look('a')"
    """
    return ast.unparse(_Filled(body).visit(ast.parse(template, mode="eval")))


class _Filled(ast.NodeTransformer):
    def __init__(self, body: BaseModel) -> None:
        fields = type(body).model_fields
        self.values = {name: getattr(body, name) for name in fields}
        self.defaults = {name for name, field in fields.items() if self.values[name] == field.get_default()}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        while node.args and self._is_default(node.args[-1]):
            node.args.pop()
        node.keywords = [keyword for keyword in node.keywords if not self._is_default(keyword.value)]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "model":
            change, steer = self.values.get("change"), self.values.get("steer")
            changed = f"model.changed({_literal(change)})" if change else "model"
            entries = steer if isinstance(steer, list) else [steer]
            return ast.parse(f"{changed}.steered({_literal(entries)})" if steer else changed, mode="eval").body
        return ast.parse(_literal(self.values[node.id]), mode="eval").body if node.id in self.values else node

    def _is_default(self, node: ast.expr) -> bool:
        """Whether it is what Python takes by itself; nothing is opened by a name that was not given."""
        if isinstance(node, ast.Call):
            return bool(node.args) and all(map(self._is_default, node.args))
        named = node.value if isinstance(node, ast.Starred) else node
        return isinstance(named, ast.Name) and named.id in self.defaults


def _literal(value: Any) -> str:
    if isinstance(value, SiteChange):
        arguments = value.model_dump(exclude_defaults=True)
        return f"Change({', '.join(f'{name}={argument!r}' for name, argument in arguments.items())})"
    if isinstance(value, BaseModel):
        return repr(value.model_dump(exclude_none=True))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_literal(item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
