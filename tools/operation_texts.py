"""What is written from the operations: the stub for type checkers and editors, and the rows of docs/serving.md.

`python tools/operation_texts.py` writes both; a test says when they are old.
"""

from __future__ import annotations

from pathlib import Path

from glassformer.ground.operations import OPERATIONS, READING, Operation, operations_on
from glassformer.observe import reading
from glassformer.runtime.model import Model

STUB = Path(reading.__file__).with_suffix(".pyi")
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
BEFORE = "| `POST /glass/record` |"  # the row that the operations' rows follow


def stub() -> str:
    """`Reading` with its operations as methods: each is a function whose first parameter is the reading."""
    operations = operations_on(READING)
    imports = [
        "from glassformer.observe.activations import Activations",
        *(f"from {one.function.__module__} import {one.name} as _{one.name}" for one in operations),
    ]
    methods = [f"    {one.name} = _{one.name}" for one in operations]
    lines = [
        '"""Made by tools/operation_texts.py."""',
        "",
        *sorted(imports),
        "",
        "class Reading(Activations):",
        *methods,
        "",
    ]
    return "\n".join(lines)


def page(text: str) -> str:
    """docs/serving.md with a row for each operation that is served, after that of `/glass/record`."""
    assert hasattr(reading.Reading, "lens")
    assert hasattr(Model, "look")
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
    STUB.write_text(stub(), "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
