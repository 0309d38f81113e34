"""Operations: what is derived from each one's signature is complete, and what is kept of it is not old."""

from __future__ import annotations

import inspect

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app, operation_verbs
from glassformer.ground.errors import InputTypeError, UnknownArgument
from glassformer.ground.operations import (
    MODEL,
    OPERATIONS,
    READING,
    RUN,
    Operation,
    import_operations,
    operations_on,
    statements,
)
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.see.reading import Reading
from glassformer.serving.http.operation_routes import python_template, request_model, router, served_at
from tests.see.models import TEXT, both
from tools.operation_texts import PAGE, page, stubs

for package in ("glassformer.see", "glassformer.cli"):
    import_operations(package)
ALL = sorted(OPERATIONS.values(), key=lambda operation: (operation.owner, operation.name))
SERVED = [operation for operation in ALL if operation.route is not None]


def name_of(operation: Operation) -> str:
    return f"{operation.owner}.{operation.name}"


def test_the_stub_and_the_page_are_not_old() -> None:
    for file, text in stubs().items():
        assert file.read_text("utf-8") == text, "python tools/operation_texts.py"
    assert PAGE.read_text("utf-8") == page(PAGE.read_text("utf-8")), "python tools/operation_texts.py"


def test_what_is_read_off_the_files_is_what_they_state() -> None:
    functions = [
        operation
        for operation in ALL
        if operation.function.__module__.startswith("glassformer.see") and "." not in operation.function.__qualname__
    ]
    assert sorted((one.owner, one.name, one.module, one.summary) for one in statements("glassformer.see")) == [
        (one.owner, one.name, one.function.__module__, one.summary) for one in functions
    ]


@pytest.mark.parametrize("operation", ALL, ids=name_of)
def test_an_operation_says_what_it_does_and_what_each_argument_means(operation: Operation) -> None:
    assert operation.summary.endswith(".")
    if operation.route is not None or operation.example is not None:
        unexplained = [argument.name for argument in operation.arguments if not argument.info.help.endswith(".")]
        assert not unexplained


@pytest.mark.parametrize("operation", operations_on(READING), ids=name_of)
def test_an_operation_on_a_text_is_a_method_with_its_help_and_its_checks(operation: Operation) -> None:
    method = getattr(Reading, operation.name)
    assert operation.summary.split()[0] in inspect.getdoc(method)
    reading = both("gpt2").model.read(TEXT)
    with pytest.raises(UnknownArgument, match=rf"{operation.name}\(\) has no argument 'nonsense'.* It takes: (?!reading)"):
        getattr(reading, operation.name)(nonsense=1)


def test_an_operation_on_a_run_or_on_its_text_is_a_method_of_the_run() -> None:
    run = both("gpt2").model.watch(TEXT, max_new_tokens=2)
    assert all(hasattr(Run, operation.name) for owner in (READING, RUN) for operation in operations_on(owner))
    assert run.attention(0).weights.tolist() == run.reading.attention(0).weights.tolist()
    assert run.attribution(-1).position == run.reading.prompt_length
    assert run.trace == run.trace
    assert "one head, a layer's mean" in str(inspect.getdoc(Run.attention))
    with pytest.raises(UnknownArgument, match="'knd'"):
        run.heads(knd="self")
    with pytest.raises(InputTypeError, match="step is '1'"):
        run.sweep("temperature", [1.0], "1")


def test_arguments_are_of_their_types() -> None:
    reading = both("gpt2").model.read(TEXT)
    with pytest.raises(InputTypeError, match="layer is '1'"):
        reading.attention("1")
    with pytest.raises(InputTypeError, match="circuit"):
        reading.circuit(1)


@pytest.mark.parametrize("operation", SERVED, ids=name_of)
def test_a_request_has_an_operations_arguments_with_their_help_and_defaults(operation: Operation) -> None:
    fields = request_model(*served_at(str(operation.route))).model_fields
    for argument in operation.arguments:
        if not argument.info.served:
            assert argument.name not in fields
            continue
        field = fields[argument.name]
        assert field.description == argument.info.help
        assert field.is_required() == argument.required
        assert argument.required or field.default in (argument.default, argument.info.served_default)
    template = python_template(operation, "reading")
    assert all(argument.name in template for argument in operation.served_arguments)
    assert [route.path for route in router.routes].count(f"/glass/{operation.route}") == 1  # type: ignore[attr-defined]


def test_verbs_are_those_of_the_operations_with_an_example() -> None:
    explaining = {operation.verb: operation for operation in ALL if operation.example is not None}
    assert operation_verbs().keys() == explaining.keys()
    for verb, main in explaining.items():
        shown = CliRunner().invoke(app, [str(verb), "--help"], env={"COLUMNS": "500"}).output
        views = sorted((one for one in OPERATIONS.values() if one.verb == verb), key=lambda one: bool(one.chosen_by))
        arguments = [argument for view in views for argument in view.arguments if argument.info.typed is not False]
        said = "".join(shown.split())  # lines are broken anywhere
        helps = {one.named()[0]: one.info.help for one in reversed(arguments)}  # the first view's, of what several have
        options = [name for argument in arguments for name in argument.named()]
        assert all("".join(text.split())[1:] in said for text in (main.verb_help or main.summary, *helps.values(), *options))
        assert "Examples:\n  glass " in shown


def test_operations_on_a_model_are_its_methods() -> None:
    assert all(hasattr(Model, operation.name) for operation in operations_on(MODEL))
    assert {"look", "parameters", "patch", "read", "sites", "tokens", "tree"} <= set(dir(Model))
