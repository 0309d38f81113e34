"""What is written from the operations: the stub for type checkers and editors, and the rows of docs/serving.md.

`python tools/operation_texts.py` writes both; a test says when they are old.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from glassformer import see
from glassformer.ground.operations import MODEL, OPERATIONS, READING, Operation, import_operations, operations_on
from glassformer.see.model_operations import ModelOperations
from glassformer.see.reading_operations import ReadingOperations

import_operations(see.__name__)
CLASSES = {MODEL: ModelOperations, READING: ReadingOperations}  # by what their operations are on
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
BEFORE = "| `POST /glass/record` |"  # the row that the operations' rows follow


def stubs() -> dict[Path, str]:
    """For each class its operations as methods: functions whose first parameter is the model or the reading."""
    return {
        Path(inspect.getfile(cls)).with_suffix(".pyi"): _stub(cls, operations_on(owner)) for owner, cls in CLASSES.items()
    }


def _stub(cls: type, operations: Sequence[Operation]) -> str:
    imports = [f"from {one.function.__module__} import {one.function.__name__} as _{one.name}" for one in operations]
    lines = [f'"""Made by tools/{Path(__file__).name}."""', "", *sorted(imports), "", f"class {cls.__name__}:"]
    return "\n".join([*lines, *map(_method, operations), ""])


def _method(operation: Operation) -> str:
    method = f"property(_{operation.name})" if operation.is_property else f"_{operation.name}"
    return f"    {operation.name} = {method}"


def page(text: str) -> str:
    """docs/serving.md with a row for each operation that is served, after that of `/glass/record`."""
    rows = {_start(operation): _row(operation) for operation in OPERATIONS.values() if operation.route is not None}
    lines = [line for line in text.split("\n") if not line.startswith(tuple(rows))]
    place = next(number for number, line in enumerate(lines, 1) if line.startswith(BEFORE))
    return "\n".join([*lines[:place], *(rows[start] for start in sorted(rows)), *lines[place:]])


def _start(operation: Operation) -> str:
    return f"| `POST /glass/{operation.route}` |"


def _row(operation: Operation) -> str:
    fields = [argument.name for argument in operation.served_arguments()]
    fields = ["prompt", *fields] if operation.on_text or operation.takes_prompt else fields
    summary = operation.summary.removeprefix("Show ").removesuffix(".")
    return f"{_start(operation)} `{{{', '.join(fields)}}}` → {summary[0].lower()}{summary[1:]} |"


if __name__ == "__main__":
    for file, text in stubs().items():
        file.write_text(text, "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
