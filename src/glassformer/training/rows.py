"""Labelled examples out of a file: JSON lines or CSV, each row checked before the training begins.

A row is a table of fields. What a task needs of it is read by name; the names that people use for the same thing are known.
"""

from __future__ import annotations

import csv
import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.ground.errors import InputError
from glassformer.ground.typecheck import brief
from glassformer.jobs.input_rows import JSON_SUFFIXES, LinesFile
from glassformer.text.inputs import refuse_lone_surrogates

CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}
MAX_LINE = 1 << 26  # bytes of a line of CSV, and characters of a field
TEXT = ("text", "sentence", "input", "source", "content", "sentence1", "premise")
PAIR = ("text_pair", "sentence2", "hypothesis")
LABEL = ("label", "labels", "class", "category", "target")
TOKENS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels")
SPANS = ("spans", "entities")
SOURCE, TARGET = ("source", "input", "text", "word"), ("target", "output", "summary", "label", "translation")


@dataclass(frozen=True)
class DataRow:
    fields: Mapping[str, Any]
    place: str  # in which file and line, for messages

    def get(self, names: Sequence[str]) -> Any:
        """The field that has one of these names."""
        name = next((name for name in names if name in self.fields), None)
        if name is None:
            known = ", ".join(map(repr, self.fields)) or "no fields"
            raise InputError(f"{self.place}: lacks {_quoted(names)}; it has {known}.")
        return self.fields[name]

    def has(self, names: Sequence[str]) -> bool:
        return any(name in self.fields for name in names)

    def text(self, names: Sequence[str]) -> str:
        value = self.get(names)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.place}: {names[0]!r} is {brief(value)}; it must be a text that is not empty.")
        refuse_lone_surrogates(value, f"{self.place}: {names[0]!r}")
        return value

    def items(self, names: Sequence[str]) -> Sequence[Any]:
        """A list that is not empty; of a text, as CSV has it, its words."""
        value = self.get(names)
        items = value.split() if isinstance(value, str) else value
        if not isinstance(items, list) or not items:
            raise InputError(f"{self.place}: {names[0]!r} is {brief(value)}; it must be a list that is not empty.")
        return items

    def tokens(self, names: Sequence[str]) -> str | list[str]:
        """A text, or a list of tokens as the vocabulary spells them."""
        value = self.get(names)
        if isinstance(value, list) and value and all(isinstance(token, str) for token in value):
            return value
        return self.text(names)


def read_rows(path: Path, columns: Sequence[Sequence[str]] = ()) -> list[DataRow]:
    """All rows of a file; the first that cannot be read is an error.

    `columns`: the fields that are needed, each under any of some names; a CSV's first line must name them.
    """
    if path.suffix.lower() in CSV_SUFFIXES:
        rows = _read_csv(path, CSV_SUFFIXES[path.suffix.lower()], columns)
    elif path.suffix.lower() in JSON_SUFFIXES:
        rows = _read_json_lines(path)
    else:
        raise InputError(
            f"{path}: rows are read from {', '.join((*JSON_SUFFIXES, *CSV_SUFFIXES))}. Name it so, or convert it."
        )
    if not rows:
        raise InputError(f"{path}: holds no rows. Give a file with examples.")
    return rows


def _read_json_lines(path: Path) -> list[DataRow]:
    file = LinesFile(path, as_json=True)
    try:
        rows = []
        for index, value in enumerate(file.values(), 1):
            if isinstance(value, InputError):
                raise value
            if not isinstance(value, dict):
                raise InputError(
                    f'{path.name}, row {index}: is {brief(value)}; it must be an object, such as {{"text": …}}.'
                )
            rows.append(DataRow(value, f"{path.name}, row {index}"))
        return rows
    finally:
        file.close()


def _read_csv(path: Path, delimiter: str, columns: Sequence[Sequence[str]]) -> list[DataRow]:
    csv.field_size_limit(MAX_LINE)
    try:
        with path.open("rb") as file:
            reader = csv.DictReader(_csv_lines(path, file), delimiter=delimiter)
            _check_header(path, list(reader.fieldnames or ()), columns)
            rows = []
            for values in reader:
                if None in values or None in values.values():
                    raise InputError(
                        f"{path.name}, line {reader.line_num}: has another number of fields than the first line."
                    )
                rows.append(DataRow(values, f"{path.name}, line {reader.line_num}"))
            return rows
    except csv.Error as error:
        raise InputError(f"{path.name}, line {reader.line_num}: not readable as CSV ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}. Check the path and its permissions.") from error


def _csv_lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """The lines of a file, none of which is held in memory if it is too long."""
    for index, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
        if len(line) > MAX_LINE:
            raise InputError(f"{path.name}, line {index}: longer than {MAX_LINE:,} bytes. Split it.")
        try:
            yield str(line.removeprefix(BOM_UTF8) if index == 1 else line, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path.name}, line {index}: not UTF-8 text ({error.reason}). Convert the file first."
            ) from None


def _check_header(path: Path, header: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """Refuse a first line that does not name the columns."""
    place, named = f"{path.name}, line 1", ", ".join(brief(name) for name in header)
    if double := [name for name, count in Counter(header).items() if count > 1]:
        raise InputError(f"{place}: names the column {double[0]!r} twice. Rename one of them.")
    for names in columns if header else ():
        if not set(names) & set(header):
            raise InputError(
                f"{place}: names no column {_quoted(names)}, but {named}. Put a line with the columns' names first."
            )


def split_rows(
    rows: Sequence[DataRow], share: float, key: Callable[[DataRow], str] | None = None
) -> tuple[list[DataRow], list[DataRow]]:
    """Rows to train on, and held-out ones: always the same, whatever the order, and equal keys on the same side."""
    kept: list[DataRow] = []
    held_out: list[DataRow] = []
    for row in rows:
        text = json.dumps(row.fields, sort_keys=True) if key is None else key(row)
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") / 2**64  # from 0 to 1
        (held_out if drawn < share else kept).append(row)
    return kept, held_out


def rows_digest(rows: Iterable[DataRow]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.fields, sort_keys=True).encode())
    return digest.hexdigest()


def _quoted(names: Sequence[str]) -> str:
    """A field's name, and those that are taken for it.

    >>> _quoted(["label", "class"]), _quoted(["rejected"])
    ("'label' (also: class)", "'rejected'")
    """
    others = f" (also: {', '.join(names[1:])})" if names[1:] else ""
    return f"{names[0]!r}{others}"
