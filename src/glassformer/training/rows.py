"""Labelled examples out of a file: JSON lines or CSV, each row checked before the training begins.

A row is a table of fields. What a task needs of it is read by name; the names that people use for the same thing are known.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.errors import InputError
from glassformer.jobs.input_rows import JSON_SUFFIXES, LinesFile
from glassformer.typecheck import brief

CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}
TEXT, LABEL = ("text", "sentence", "input", "source", "content"), ("label", "labels", "class", "category", "target")
SOURCE, TARGET = ("source", "input", "text", "word"), ("target", "output", "summary", "label", "translation")


@dataclass(frozen=True)
class Row:
    fields: Mapping[str, Any]
    place: str  # in which file and line, for messages

    def get(self, names: Sequence[str]) -> Any:
        """The field that has one of these names."""
        name = next((name for name in names if name in self.fields), None)
        if name is None:
            known = ", ".join(map(repr, self.fields)) or "no fields"
            raise InputError(f"{self.place}: lacks {names[0]!r} (also: {', '.join(names[1:])}); it has {known}.")
        return self.fields[name]

    def text(self, names: Sequence[str]) -> str:
        value = self.get(names)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.place}: {names[0]!r} is {brief(value)}; it must be a text that is not empty.")
        return value

    def tokens(self, names: Sequence[str]) -> str | list[str]:
        """A text, or a list of tokens as the vocabulary spells them."""
        value = self.get(names)
        if isinstance(value, list) and value and all(isinstance(token, str) for token in value):
            return value
        return self.text(names)


def read_rows(path: Path) -> list[Row]:
    """All rows of a file; the first that cannot be read is an error."""
    if path.suffix.lower() in CSV_SUFFIXES:
        rows = _read_csv(path, CSV_SUFFIXES[path.suffix.lower()])
    elif path.suffix.lower() in JSON_SUFFIXES:
        rows = _read_json_lines(path)
    else:
        raise InputError(
            f"{path}: rows are read from {', '.join((*JSON_SUFFIXES, *CSV_SUFFIXES))}. Name it so, or convert it."
        )
    if not rows:
        raise InputError(f"{path}: holds no rows. Give a file with examples.")
    return rows


def _read_json_lines(path: Path) -> list[Row]:
    file = LinesFile(path, as_json=True)
    try:
        rows = []
        for number, value in enumerate(file.values(), 1):
            if isinstance(value, InputError):
                raise value
            if not isinstance(value, dict):
                raise InputError(
                    f'{path.name}, row {number}: is {brief(value)}; it must be an object, such as {{"text": …}}.'
                )
            rows.append(Row(value, f"{path.name}, row {number}"))
        return rows
    finally:
        file.close()


def _read_csv(path: Path, delimiter: str) -> list[Row]:
    csv.field_size_limit(1 << 26)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter=delimiter)
            rows = []
            for values in reader:
                if None in values or None in values.values():
                    raise InputError(
                        f"{path.name}, line {reader.line_num}: has another number of fields than the first line."
                    )
                rows.append(Row(values, f"{path.name}, line {reader.line_num}"))
            return rows
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}). Convert it first.") from None
    except csv.Error as error:
        raise InputError(f"{path.name}, line {reader.line_num}: not readable as CSV ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}. Check the path and its permissions.") from error


def split_rows(rows: Sequence[Row], share: float, key: Callable[[Row], str] | None = None) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and held-out ones: always the same, whatever the order, and equal keys on the same side."""
    kept: list[Row] = []
    held_out: list[Row] = []
    for row in rows:
        text = json.dumps(row.fields, sort_keys=True) if key is None else key(row)
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") / 2**64
        (held_out if number < share else kept).append(row)
    return kept, held_out


def rows_digest(rows: Iterable[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.fields, sort_keys=True).encode())
    return digest.hexdigest()
