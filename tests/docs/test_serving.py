"""docs/serving.md: its Python is run against a server, its commands parse, its tables are complete."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.cli.app import app
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.docs.pages import blocks
from tests.serving.conftest import serving
from tests.serving.test_matrix import ROUTES, listed_path

PAGE = Path(__file__).parent.parent.parent / "docs" / "serving.md"


def test_python_runs_against_a_server(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry([ModelSource("smollm2", lambda: glassformer.load("smollm2"))], Limits(stop_seconds=1))
    names: dict[str, Any] = {}  # the page's blocks go on from one another
    with serving(create_app(registry)) as address:
        for mark, text, _ in blocks(PAGE):
            if mark == "python":
                exec(compile(text.replace("http://127.0.0.1:8000", address), str(PAGE), "exec"), names)
                print()
    whole, streamed, candidates, shape, *_ = capsys.readouterr().out.split("\n")
    assert "Paris" in whole
    assert streamed == whole
    assert candidates.count("'probability'") == 3
    assert shape == "[576]"
    assert set(names["glass"]) == {"steps", "receipt"}


def test_commands_parse() -> None:
    lines = re.findall(r"^\$ glass serve(.*)$", PAGE.read_text("utf-8"), re.M)
    assert lines
    for line in lines:
        command = app.get_command(app.make_context("glass", ["serve"], resilient_parsing=True), "serve")
        assert command is not None
        command.make_context("serve", shlex.split(line))


def test_every_limit_is_listed_with_its_default() -> None:
    section = PAGE.read_text("utf-8").split("\n## Limits\n")[1].split("\n## ")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", section, re.M))
    assert list(table) == [field.name for field in fields(Limits)]
    for field in fields(Limits):
        if field.default is not None:
            assert float(table[field.name]) == field.default


def test_every_route_is_listed() -> None:
    text = PAGE.read_text("utf-8")
    for key, route in ROUTES.items():
        assert f"`{route.method} {listed_path(key).replace(':path', '')}`" in text
