"""Views' pages as data, and the list of views: what a program needs to show a view that it knows nothing of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

import glassformer
from glassformer import Change
from glassformer.page.document import (
    Branch,
    Collapsible,
    Column,
    Diagram,
    DiagramEdge,
    DiagramNode,
    Grid,
    Heading,
    HoverMap,
    Line,
    LineChart,
    Page,
    PagePart,
    Paragraph,
    Preformatted,
    Shortenable,
    Table,
    TableRow,
    ThumbnailGrid,
    TokenStrip,
)
from glassformer.see.schema import KINDS, page_data, page_schema
from glassformer.serving.http.app import create_app
from glassformer.serving.http.openapi import PAGE
from glassformer.serving.http.view_list import listed_views
from glassformer.serving.registry import Registry
from tests.serving.conftest import ask
from tests.serving.test_matrix import ROUTES
from tests.serving.test_views import MESSAGES, TEXT, VIEWS, see
from tools.studio_schema import document

PARTS: tuple[PagePart, ...] = (
    Heading("a"),
    Paragraph("two\nlines", "dim"),
    Preformatted("as it is", ("is",)),
    Table((Column("name"), Column("", "bar")), (TableRow(("x", 0.5)), TableRow((Shortenable("long", "l"), 1.0), "strong"))),
    Grid(("row",), ("one", "two"), ((0.5, None),), (("a", ""),), (("a note", ""),)),
    ThumbnailGrid(("0",), ("0", "1"), np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2)),
    LineChart("loss", (Line("train", ((0.0, 1.0), (1.0, float("nan"))), True),), "step", True),
    TokenStrip(("a", "b"), (0.0, 1.0), ("", "sure"), ("", "there")),
    HoverMap(("a",), ("b",), ((None,),), (("",),)),
    Branch("root", "all", "strong", 0.5, (Branch("leaf"),)),
    Diagram(
        "flow",
        ("a",),
        ("0", "1"),
        (DiagramNode("mlp", 0, 0), DiagramNode("end", 0, 1, 1.0, "all")),
        (DiagramEdge(0, 1, -0.5),),
    ),
    Collapsible("more", (Paragraph("inside"), Collapsible("deeper", ())), True, "there"),
)


def ask_page(client: httpx.Client, view: str, **fields: Any) -> Any:
    response = client.post(f"/glass/{view}", json={"model": "tiny", **fields}, headers={"Accept": f"{PAGE}, */*;q=0.1"})
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == PAGE
    return response.json()


def test_every_kind_of_part_fits_the_schema() -> None:
    data = page_data(Page("all", PARTS), "model.all()")
    assert {part["kind"] for part in data["parts"]} == set(KINDS.values())
    jsonschema.validate(json.loads(json.dumps(data, allow_nan=False)), page_schema())
    by_kind = {part["kind"]: part for part in data["parts"]}
    assert by_kind["thumbnail_grid"]["maps"] == {"shape": [1, 2, 2, 2], "bytes": "AAECAwQFBgc="}
    assert by_kind["line_chart"]["lines"][0]["points"] == [[0.0, 1.0], [1.0, None]]
    assert by_kind["table"]["rows"][1]["cells"] == [{"text": "long", "short": "l"}, 1.0]
    assert by_kind["collapsible"]["parts"][1]["kind"] == "collapsible"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "parts": [{"kind": "script", "text": "a"}]}, page_schema())


def test_texts_are_escaped_as_for_a_terminal() -> None:
    heading, paragraph = page_data(Page("\x1b[2J", (Heading("a\nb\x1b"), Paragraph("a\nb\x1b"))))["parts"]
    assert not any("\x1b" in part["text"] for part in (heading, paragraph))
    assert "\n" not in heading["text"]
    assert "\n" in paragraph["text"]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_its_page_and_its_python_are_those_of_the_model(client: httpx.Client, model: Any, name: str) -> None:
    route, fields, view = VIEWS[name]
    page = ask_page(client, route, **fields)
    expected = view(model)
    assert see(client, route, **fields) == expected.to_dict()
    assert page == page_data(expected.page(everything=True), page["python"])
    jsonschema.validate(page, page_schema())
    names = {"model": model, "glassformer": glassformer, "Change": Change}
    assert eval(page["python"], names).to_dict() == expected.to_dict(), page["python"]


def test_only_what_was_asked_for_stands_in_the_python(client: httpx.Client) -> None:
    assert ask_page(client, "trace", prompt=TEXT)["python"] == f"model.read({TEXT!r}).trace()"
    assert ask_page(client, "trace", prompt=MESSAGES)["python"] == f"model.read({MESSAGES!r}).trace()"
    assert ask_page(client, "tokens", text='a"b', special=False)["python"] == "model.tokens('a\"b', special=False)"
    assert ask_page(client, "model")["python"] == ""


def test_data_is_what_is_answered_unless_a_page_is_accepted(client: httpx.Client) -> None:
    for accept in ("*/*", "application/json", "text/html", ""):
        response = client.post("/glass/trace", json={"prompt": TEXT}, headers={"Accept": accept})
        assert response.headers["Content-Type"] == "application/json"
        assert response.json()["schema"].startswith("glassformer.trace/")
    response = client.post("/glass/run", json={"prompt": TEXT, "max_tokens": 1}, headers={"Accept": PAGE})
    assert response.headers["Content-Type"] == "application/json", "no view, so it has no page"


def test_an_error_is_no_page(client: httpx.Client) -> None:
    response = client.post("/glass/trace", json={"prompt": ""}, headers={"Accept": PAGE})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_the_list_has_every_view_that_can_be_asked_for(client: httpx.Client) -> None:
    views = client.get("/glass/views").json()["views"]
    assert views == json.loads(json.dumps(listed_views(document())))
    names = {view["name"] for view in views}
    assert {route for route, *_ in VIEWS.values()} <= names
    assert names <= {path.removeprefix("/glass/") for path, route in ROUTES.items() if route.method == "POST"}
    assert not names & {"run", "record", "task/{task}"}, "a text that is written, and answers that are no views"
    assert all(view["title"] and view["description"].endswith(".") for view in views)


def test_the_list_says_what_each_field_takes() -> None:
    fields = {view["name"]: {field["name"]: field for field in view["fields"]} for view in listed_views(document())}
    patch, attention, lens = fields["patch"], fields["attention"], fields["lens"]
    assert (patch["first"]["kind"], patch["first"]["required"]) == ("text", True)
    assert (patch["part"]["kind"], patch["part"]["default"]) == ("choice", "residual")
    assert patch["part"]["choices"][:3] == ["residual", "attention", "recurrent"]
    assert patch["answer"]["kind"] == "integer or text"
    assert (patch["change"]["kind"], patch["change"]["shared"], patch["part"]["shared"]) == ("json", True, False)
    assert (attention["layer"]["kind"], attention["layer"]["minimum"]) == ("integer", None)
    assert attention["layer"]["description"].startswith("Which layer; -1 is the last.")
    assert (fields["trace"]["best"]["minimum"], fields["trace"]["best"]["maximum"]) == (1, 20)
    assert (attention["prompt"]["kind"], attention["prompt"]["required"]) == ("text", True)
    assert (lens["positions"]["kind"], lens["positions"]["items"]) == ("list", "integer or text")
    assert (lens["raw"]["kind"], lens["raw"]["default"]) == ("boolean", False)


def test_lists_of_other_things_than_single_values_are_typed_as_json() -> None:
    properties = {
        "pairs": {"type": "array", "items": {"$ref": "#/components/schemas/Pair"}, "examples": [[["a", "b"]]]},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "shares": {"type": "array", "items": {"type": "number"}},
        "method": {"const": "exact", "type": "string", "description": "How it is done."},
        "share": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}]},
    }
    request = {"content": {"application/json": {"schema": {"type": "object", "properties": properties}}}}
    post = {"description": "A view.", "requestBody": request, "responses": {"200": {"content": {PAGE: {}}}}}
    components = {"schemas": {"Pair": {"type": "object"}}}
    (view,) = listed_views({"paths": {"/glass/own/view": {"post": post}}, "components": components})
    assert (view["name"], view["title"]) == ("own/view", "Own, view")
    pairs, rows, shares, method, share = view["fields"]
    assert [(field["kind"], field["items"]) for field in (pairs, rows, shares)] == [
        ("json", None), ("json", None), ("list", "number"),
    ]  # fmt: skip
    assert pairs["example"] == [["a", "b"]]
    assert (method["kind"], method["choices"], method["description"]) == ("choice", ["exact"], "How it is done.")
    assert (share["kind"], share["minimum"], share["maximum"]) == ("number", 0, 1)


def test_the_training_has_its_page_too(sources: Any, training: Path) -> None:
    app = create_app(Registry(sources), training=training)
    response = ask(app, "GET", "/glass/training", headers={"Accept": PAGE})
    assert response.headers["Content-Type"] == PAGE
    jsonschema.validate(response.json(), page_schema())
