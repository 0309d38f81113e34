"""Files of many texts: a text on each line, or a column of JSON lines or CSV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path

from glassformer.errors import InputError
from glassformer.jobs.input_rows import JSON_SUFFIXES, LinesFile
from glassformer.training.rows import CSV_SUFFIXES, TEXT, Row, read_rows


class TextFile:
    """The texts of a file, read anew at each loop; of lines and JSON lines, one at a time."""

    def __init__(self, path: Path, column: str | None = None) -> None:
        self.path = path
        self.names = TEXT if column is None else (column,)
        if column is not None and path.suffix.lower() not in (*JSON_SUFFIXES, *CSV_SUFFIXES):
            raise InputError(f"{path.name} has a text on each line, and no columns. Leave --column out.")

    def __iter__(self) -> Iterator[str]:
        suffix = self.path.suffix.lower()
        if suffix in CSV_SUFFIXES:
            yield from (row.text(self.names) for row in read_rows(self.path, [self.names]))
            return
        as_json = suffix in JSON_SUFFIXES
        with closing(LinesFile(self.path, as_json=as_json)) as file:
            for number, value in enumerate(file.values(), 1):
                if isinstance(value, InputError):
                    raise value
                if as_json and not isinstance(value, str):
                    fields = value if isinstance(value, dict) else {}
                    value = Row(fields, f"{self.path.name}, row {number}").text(self.names)
                yield value

    @cached_property
    def _count(self) -> int:
        if self.path.suffix.lower() in CSV_SUFFIXES:
            return len(read_rows(self.path, [self.names]))
        with closing(LinesFile(self.path, as_json=False)) as file:
            return file.count()

    def __len__(self) -> int:
        return self._count
