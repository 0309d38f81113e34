"""docs/json.md: the table names the schemas that exist, and each command and each call gives its schema."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
from click.testing import CliRunner

import glassformer
from glassformer.cli.app import app
from glassformer.see.schema import schema
from glassformer.see.view import View
from tests.see.models import folder
from tests.test_docs import ROOT, blocks
from tests.training.folders import step_line, training_folder

OF_OTHER_MODELS = {  # shown in tests of their own
    "glassformer.experts/1", "glassformer.classification/1", "glassformer.tagging/1", "glassformer.text-to-text/1",
}  # fmt: skip
MANY_PASSES = ("model.patch", "model.attribution_patch", "model.read_many")
PAGE = ROOT / "docs" / "json.md"
TEXT = PAGE.read_text("utf-8")


class SchemaRow(NamedTuple):
    schema: str
    command: str
    call: str


ROWS = [SchemaRow(*cells) for cells in re.findall(r"^\| `(glassformer\.\S+)` \| .+? \| (.+) \| (.+) \|$", TEXT, re.M)]
COMMANDS = [row for row in ROWS if row.command.startswith("`glass ")]
CALLS = [row for row in ROWS if row.call.startswith("`")]


def views() -> dict[str, type[View]]:
    """Every view of the package, by its schema's name."""
    for module in pkgutil.walk_packages(glassformer.__path__, "glassformer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = [view for view in subclasses(View) if is_dataclass(view) and view.__module__.startswith("glassformer.")]
    by_schema = {view.SCHEMA: view for view in classes}
    assert len(by_schema) == len(classes)
    return by_schema


def subclasses(kind: type[View]) -> Iterator[type[View]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_the_table_names_every_schema() -> None:
    assert sorted(row.schema for row in ROWS) == sorted(views())


def test_every_row_has_a_command_and_a_call() -> None:
    assert {row.schema for row in ROWS} - {row.schema for row in COMMANDS} == {
        "glassformer.why/1", "glassformer.chat/1", "glassformer.recording/1", "glassformer.attention-maps/1",
        "glassformer.inside/1", "glassformer.model/1", *OF_OTHER_MODELS,
    }  # fmt: skip
    assert {row.schema for row in ROWS} - {row.schema for row in CALLS} == {"glassformer.chat/1", *OF_OTHER_MODELS}


def output(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_commands_give_their_schemas(smollm2: Path, command_folder: Path) -> None:
    """On a tiny model: what a text becomes does not matter here."""
    tiny = str(folder("gpt2", "causal")[0])
    Path("text.txt").write_text("Hi dog, how are you?")
    Path("pairs.jsonl").write_text('{"first": "Hi dog", "second": "Hi cat", "answer": "#4", "against": "#5"}')
    Path("contrasts.jsonl").write_text('{"positive": "Hi dog", "negative": "Hi cat"}')
    Path("lines.txt").write_text("Hi dog\nHi cat\n")
    Path("labelled.csv").write_text("text,label\nHi dog,a\nHi,b\nA dog,a\nA,b\n")
    training_folder(Path("book"), [step_line(1, 5.0)], ("gpt2",))
    for row in COMMANDS:
        _, *words = shlex.split(row.command.strip("`"))
        if (
            "--replay" in words or words[0] == "tokens" or words[0] == "learning"
        ):  # the model is in the file; the tiny one has no padding
            text = output(*words, "--json")
        elif words[0] == "models":
            text = output(*words, tiny, "--json")
        elif "--save" in words:
            output(*words, "-m", tiny)
            text = Path(words[-1]).read_text("utf-8")
        else:
            text = output(*words, "-m", tiny, "--json")
        jsonschema.validate(json.loads(text), schema(views()[row.schema]))


def test_calls_give_their_schemas(smollm2: Path, command_folder: Path) -> None:
    """Those that take many passes on a tiny model."""
    training_folder(Path("book"), [step_line(1, 5.0)], ("gpt2",))
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, str(PAGE), "exec"), names)
    tiny = {**names, "model": glassformer.load(folder("gpt2", "causal")[0])}
    for row in CALLS:
        call = row.call.strip("`")
        view = eval(call, tiny if call.startswith(MANY_PASSES) else names)
        assert type(view) is views()[row.schema]
        jsonschema.validate(json.loads(json.dumps(view.to_dict())), schema(type(view)))


def test_the_example_is_what_is_printed(smollm2: Path, command_folder: Path) -> None:
    (command,) = blocks(PAGE, "sh")
    (shown,) = blocks(PAGE, "json")
    assert json.loads(output(*shlex.split(command)[1:])) == json.loads(shown)
