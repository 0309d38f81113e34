"""What every view has: data, and every form of output made from the same data.

A view is a frozen dataclass. `print` shows it in the terminal, a notebook shows it as HTML, `to_dict` gives it as plain data
for JSON, under a schema with a name and a version, and `save` writes any of these. Iterated, it is the rows of a table: that
is what `pandas.DataFrame(view)` and others that take rows ask for. docs/adding-a-view.md shows one.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked, checked_class
from glassformer.ground.errors import InputError
from glassformer.ground.files import write_text
from glassformer.page.format import to_json

if TYPE_CHECKING:
    from glassformer.page.document import Page

Floats: TypeAlias = npt.NDArray[np.float32]


class View:
    """The base of all views: a subclass names its schema, and draws its page."""

    def __init_subclass__(cls) -> None:
        """Each view's own calls check their arguments."""
        checked_class(cls)

    RECORDS: ClassVar[str] = ""  # the field that holds the rows of its table; by default the first tuple of dataclasses
    SCHEMA: ClassVar[str]  # such as "glassformer.journey/2"; the version grows when a reader of the old form would fail

    def page(self, everything: bool = False) -> Page:
        """The view as a document for any renderer; long ones are shortened unless `everything` is shown."""
        raise NotImplementedError

    @checked
    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON, with the name of its schema."""
        data: dict[str, Any] = plain_data(self)
        return {"schema": self.SCHEMA, **data}

    @checked
    def records(self) -> list[dict[str, Any]]:
        """The view as rows of a table, each by column: what it lists; where it lists nothing, itself."""
        cls: Any = type(self)
        field = self.RECORDS or _records_field(cls)
        return [flat_data(record) for record in (getattr(self, field) if field else [self])]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records())

    def __rich__(self) -> Any:
        from glassformer.page.terminal import TerminalPage

        return TerminalPage(self.page())

    def __str__(self) -> str:
        """What `print` shows, without colors."""
        from glassformer.page.terminal import plain_text, terminal_width

        return plain_text(self, terminal_width())

    def _repr_html_(self) -> str:
        from glassformer.page.html import html_fragment

        return html_fragment(self.page())

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .json for programs, .html for a browser, .txt for people."""
        return write_page(path, lambda: to_json(self.to_dict(), allow_nan=False), lambda: self.page(everything=True))


class ArrayView(View):
    """A view that is an array too: `numpy.asarray(view)`.

    Not by `__array__`, which pandas would ask for before it asks for rows, and so lose what the numbers are of.
    """

    def numbers(self) -> npt.NDArray[Any]:
        raise NotImplementedError

    @property
    def __array_interface__(self) -> dict[str, Any]:
        numbers = np.ascontiguousarray(self.numbers())
        return {"version": 3, "shape": numbers.shape, "typestr": numbers.dtype.str, "data": numbers.data}


@cache
def _records_field(cls: type) -> str | None:
    """The first field that is a tuple of dataclasses."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        kind, *more = get_args(hints[field.name]) or (None,)
        if get_origin(hints[field.name]) is tuple and more == [Ellipsis] and is_dataclass(kind):
            return field.name
    return None


def flat_data(record: Any, prefix: str = "") -> dict[str, Any]:
    """A dataclass as a row of a table: the fields of a dataclass in it are columns of their own, `token_text` and so on."""
    row: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            row |= flat_data(value, f"{prefix}{field.name}_")
        elif field.metadata.get("stored", True):
            row[prefix + field.name] = plain_data(value)
    return row


FORMS = (".json", ".html", ".txt")


def form_of(path: Path) -> str:
    """The form that a file's suffix stands for."""
    if path.suffix not in FORMS:
        raise InputError(f"{path.name!r} does not say in which form it is to be written. End it in {', '.join(FORMS)}.")
    return path.suffix


def write_form(path: str | os.PathLike[str], forms: Mapping[str, Callable[[], str]]) -> Path:
    """Write the form that a file's suffix stands for."""
    target = Path(path)
    text = forms[form_of(target)]()
    try:
        write_text(target, text)
    except ValueError as error:  # a name that no file can have
        raise InputError(f"{str(target)!r} cannot be written: {error}.") from error
    return target


def write_page(path: str | os.PathLike[str], json_text: Callable[[], str], page: Callable[[], Page]) -> Path:
    """Write data as JSON, or its page as HTML or text, as a file's suffix says."""
    from glassformer.page.html import html_document
    from glassformer.page.terminal import TerminalPage, plain_text

    forms = {
        ".json": lambda: json_text() + "\n",
        ".html": lambda: html_document(page()),
        ".txt": lambda: plain_text(TerminalPage(page())),
    }
    return write_form(path, forms)


def plain_data(value: Any) -> Any:
    """Dataclasses, arrays and enums as dicts, lists and numbers; NaN and infinity as None; bytes in base64."""
    if is_dataclass(value):
        return {
            field.name: plain_data(getattr(value, field.name))
            for field in fields(value)
            if field.metadata.get("stored", True)
        }
    if isinstance(value, Mapping):
        return {str(name): plain_data(item) for name, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain_data(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_data(value.tolist())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
