"""What is written from the operations: the stub for type checkers and editors, and the rows of docs/serving.md.

`python tools/operation_texts.py` writes both; a test says when they are old.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from glassformer import see
from glassformer.ground.operations import MODEL, OPERATIONS, READING, RUN, Operation, import_operations, operations_on
from glassformer.see import model_operations, reading_operations
from glassformer.serving.http.operation_routes import served_at

import_operations(see.__name__)
MODULES = {model_operations: (MODEL, RUN), reading_operations: (READING,)}  # what the operations of their classes are on
STANDARD = "from collections.abc import Callable\nfrom typing import Concatenate, Generic, ParamSpec, TypeVar\n"
OF_READING = '''
P = ParamSpec("P")
R = TypeVar("R")

class _OfReading(Generic[P, R]):
    """The reading's method, of what has a reading."""

    def __init__(self, function: Callable[Concatenate[Activations, P], R]) -> None: ...
    def __get__(self, instance: object, cls: type | None = None) -> Callable[P, R]: ...'''
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
BEFORE = "| `POST /glass/record` |"  # the row that the operations' rows follow


def stubs() -> dict[Path, str]:
    """For each module the classes whose methods are operations: functions whose first parameter is the model, the run, …."""
    return {Path(str(module.__file__)).with_suffix(".pyi"): _stub(owners) for module, owners in MODULES.items()}


def _stub(owners: Sequence[str]) -> str:
    operations = {owner: operations_on(owner) for owner in owners}
    methods = {owner: list(map(_method, stated)) for owner, stated in operations.items()}
    imports = {line for stated in operations.values() for line in _imports(stated)}
    before, after = [], []
    if RUN in owners:
        known = {operation.name for operation in operations[RUN]}
        through = [operation for operation in operations_on(READING) if operation.name not in known]
        methods[RUN] += [f"    {operation.name} = _OfReading({_alias(operation)})" for operation in through]
        imports |= {*_imports(through), "from glassformer.see.activations import Activations"}
        before, after = [STANDARD], [OF_READING]
    classes = ["\n".join(["", f"class {owner.capitalize()}Operations:", *lines]) for owner, lines in methods.items()]
    made = f'"""Made by tools/{Path(__file__).name}."""\n'
    return "\n".join([made, *before, *sorted(imports), *after, *classes, ""])


def _alias(operation: Operation) -> str:
    return f"_{operation.owner}_{operation.name}"


def _imports(operations: Sequence[Operation]) -> Iterator[str]:
    for operation in operations:
        function = operation.function
        if operation.is_property:
            view = function.__globals__[operation.view_name]
            yield f"from {view.__module__} import {view.__name__}"
        else:
            yield f"from {function.__module__} import {function.__name__} as {_alias(operation)}"


def _method(operation: Operation) -> str:
    if operation.is_property:
        return f"    @property\n    def {operation.name}(self) -> {operation.view_name}: ..."
    return f"    {operation.name} = {_alias(operation)}"


def page(text: str) -> str:
    """docs/serving.md with a row for each operation that is served, after that of `/glass/record`."""
    routes = {operation.route for operation in OPERATIONS.values() if operation.route is not None}
    rows = {_start(route): _row(route) for route in routes}
    lines = [line for line in text.split("\n") if not line.startswith(tuple(rows))]
    place = next(number for number, line in enumerate(lines, 1) if line.startswith(BEFORE))
    return "\n".join([*lines[:place], *(rows[start] for start in sorted(rows)), *lines[place:]])


def _start(route: str) -> str:
    return f"| `POST /glass/{route}` |"


def _row(route: str) -> str:
    operations = served_at(route)
    fields = [argument.name for operation in operations for argument in operation.served_arguments]
    prompt = ["prompt"] if any(operation.on_text or operation.takes_prompt for operation in operations) else []
    summary = operations[0].summary.removeprefix("Show ").removesuffix(".")
    return f"{_start(route)} `{{{', '.join(dict.fromkeys(prompt + fields))}}}` → {summary[0].lower()}{summary[1:]} |"


if __name__ == "__main__":
    for file, text in stubs().items():
        file.write_text(text, "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
