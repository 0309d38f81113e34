"""A view as an answer: its data, or its page as data where the client accepts `PAGE`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import PAGE
from glassformer.serving.http.python_lines import python_line
from glassformer.views.page_data import SCHEMA, page_data
from glassformer.views.view import View


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
