"""Operations: what is derived from each one's signature is complete, and what is kept of it is not old."""

from __future__ import annotations

import inspect

import pytest
from click.testing import CliRunner

import glassformer.observe
from glassformer.cli.app import app, operation_verbs
from glassformer.ground.errors import InputTypeError, UnknownArgument
from glassformer.ground.operations import OPERATIONS, READING, Operation, files_with_operations, operations_on
from glassformer.observe.reading import Reading
from glassformer.runtime.model import Model
from glassformer.serving.http.operation_routes import python_template, request_model, router
from tests.observe.models import TEXT, both
from tools.operation_texts import PAGE, STUB, page, stub

ALL = sorted(OPERATIONS.values(), key=lambda operation: (operation.owner, operation.name))
SERVED = [operation for operation in ALL if operation.route is not None]


def name_of(operation: Operation) -> str:
    return f"{operation.owner}.{operation.name}"


def test_the_stub_and_the_page_are_not_old() -> None:
    assert STUB.read_text("utf-8") == stub(), "python tools/operation_texts.py"
    assert PAGE.read_text("utf-8") == page(PAGE.read_text("utf-8")), "python tools/operation_texts.py"


def test_every_file_with_an_operation_is_found_without_importing_others() -> None:
    files = {file.stem for file in files_with_operations(glassformer.observe.__path__)}
    stated = {operation.function.__module__.rpartition(".")[2] for operation in operations_on(READING)}
    assert stated <= files
    assert "differentiation" not in files, "which imports torch"


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


def test_arguments_are_of_their_types() -> None:
    reading = both("gpt2").model.read(TEXT)
    with pytest.raises(InputTypeError, match=r"attention\(\): layer is '1'; it must be a whole number or None"):
        reading.attention("1")
    with pytest.raises(InputTypeError, match=r"circuit\(\) needs head. It takes: layer, head, distance, best"):
        reading.circuit(1)


@pytest.mark.parametrize("operation", SERVED, ids=name_of)
def test_a_request_has_an_operations_arguments_with_their_help_and_defaults(operation: Operation) -> None:
    fields = request_model(operation).model_fields
    for argument in operation.arguments:
        if not argument.info.served:
            assert argument.name not in fields
            continue
        field = fields[argument.name]
        assert field.description == argument.info.help
        assert field.is_required() == argument.required
        assert argument.required or field.default == argument.default
    template = python_template(operation, "reading")
    assert all(argument.name in template for argument in operation.served_arguments())
    assert [route.path for route in router.routes].count(f"/glass/{operation.route}") == 1  # type: ignore[attr-defined]


def test_verbs_are_those_of_the_operations_with_an_example() -> None:
    with_example = {operation.name: operation.summary for operation in ALL if operation.example is not None}
    assert operation_verbs() == with_example
    for name in with_example:
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "500"}).output
        operation = OPERATIONS[READING, name]
        said = "".join(shown.split())  # lines are broken anywhere
        texts = [argument.info.help for argument in operation.arguments]
        options = [name for argument in operation.arguments for name in argument.info.named(argument.name)]
        assert all("".join(text.split()) in said for text in (operation.summary, *texts, *options))
        assert "Examples:\n  glass " in shown


def test_operations_on_a_model_are_its_methods() -> None:
    assert {operation.name for operation in operations_on("model")} == {"look", "parameters", "sites", "tokens", "tree"}
    assert all(hasattr(Model, operation.name) for operation in operations_on("model"))
