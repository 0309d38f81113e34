"""What every view has: data first, and each form of it made from the same numbers.

A view is a frozen dataclass. `print` shows it in the terminal, a notebook shows it as HTML, `to_dict` gives it as JSON can
hold it, under a schema with a name and a version, and `save` writes any of these.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.page.document import Page

Floats: TypeAlias = npt.NDArray[np.float32]


class View:
    """A view; its class says what it is called in files, and has a page."""

    SCHEMA: ClassVar[str]  # such as "glassformer.journey/1"; the number grows when a reader of the old form would stumble

    def page(self, everything: bool = False) -> Page:
        """What it looks like, wherever that is; long ones are shortened in the middle unless `everything` is wanted."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with the name of its schema."""
        data: dict[str, Any] = plain_data(self)
        return {"schema": self.SCHEMA, **data}

    def __rich__(self) -> Any:
        from glassformer.page.terminal import Drawn

        return Drawn(self.page())

    def __str__(self) -> str:
        """The whole picture, without colours."""
        from glassformer.page.terminal import plain, width

        return plain(self, width())

    def _repr_html_(self) -> str:
        from glassformer.page.html import fragment

        return fragment(self.page())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .json for programs, .html for a browser, .txt for people."""
        from glassformer.page.html import document
        from glassformer.page.terminal import Drawn, plain

        forms = {
            ".json": lambda: json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n",
            ".html": lambda: document(self.page(everything=True)),
            ".txt": lambda: plain(Drawn(self.page(everything=True))),
        }
        return write_form(path, forms)


FORMS = (".json", ".html", ".txt")


def form_of(path: Path) -> str:
    """The form that a file's name asks for."""
    if path.suffix not in FORMS:
        raise InputError(f"{path.name!r} does not say in which form it is to be written. End it in {', '.join(FORMS)}.")
    return path.suffix


def write_form(path: str | os.PathLike[str], forms: Mapping[str, Callable[[], str]]) -> Path:
    """Write the form that a file's name asks for."""
    target = Path(path)
    text = forms[form_of(target)]()
    try:
        target.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be written: {error.strerror or error}.") from error
    return target


def plain_data(value: Any) -> Any:
    """Dataclasses, arrays and enums as dicts, lists and numbers; what is not a number as null."""
    if is_dataclass(value):
        return {
            field.name: plain_data(getattr(value, field.name))
            for field in fields(value)
            if field.metadata.get("stored", True)
        }
    if isinstance(value, Mapping):
        return {str(name): plain_data(one) for name, one in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain_data(one) for one in value]
    if hasattr(value, "tolist"):
        return plain_data(value.tolist())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
