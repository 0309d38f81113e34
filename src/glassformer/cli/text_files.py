"""Files of many texts: a text on each line, or a column of JSON lines or CSV; and files of one long text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path

from glassformer.cli.text_input import unreadable_error
from glassformer.ground.errors import InputError
from glassformer.jobs.input_rows import JSON_SUFFIXES, LinesFile
from glassformer.training.corpus import LONGEST_LINE, check_line
from glassformer.training.rows import CSV_SUFFIXES, TEXT, DataRow, read_rows

PIECE_BYTES = 1 << 16  # of a long text, at least


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
                    value = DataRow(fields, f"{self.path.name}, row {number}").text(self.names)
                yield value

    @cached_property
    def _count(self) -> int:
        if self.path.suffix.lower() in CSV_SUFFIXES:
            return len(read_rows(self.path, [self.names]))
        with closing(LinesFile(self.path, as_json=False)) as file:
            return file.count()

    def __len__(self) -> int:
        return self._count


class TextPieces:
    """The text of a file in pieces, cut at line ends: read anew at each loop, and only as far as the loop goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not next(iter(self), ""):  # which refuses what cannot be read, before anything is computed
            raise InputError(f"{path}: is empty. Give a file with text.")

    def __iter__(self) -> Iterator[str]:
        lines: list[bytes] = []
        size = 0
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), b""), 1):
                    check_line(self.path, number, line)
                    lines.append(line)
                    size += len(line)
                    if size >= PIECE_BYTES:
                        yield b"".join(lines).decode("utf-8")
                        lines, size = [], 0
        except OSError as error:
            raise unreadable_error(self.path, error) from error
        if lines:
            yield b"".join(lines).decode("utf-8")
