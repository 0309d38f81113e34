"""The rows of a job's input: a file with a row on each line, JSON or plain text, or a Parquet file.

The file is read twice, once for its digest and the number of its rows, and then row by row; so it may be larger than the
memory. A row that cannot be read is an error in its place, and the others go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.ground.errors import InputError, reason_of
from glassformer.ground.ownership import NotCopied

JSON_SUFFIXES = (".jsonl", ".ndjson")
MAX_LINE = 1 << 26  # bytes: more than any context holds
MAX_LEVELS = 100  # of lists within lists: what the ledger holds must be read again wherever the job goes on
BLOCK = 1 << 20


class InputFile(NotCopied, ABC):
    """A file of rows. A value is what a row holds, or the error of a row that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{path} is a folder, and a file is needed. Give the path of one.")
            if not stat.S_ISREG(mode):  # a pipe would be waited for
                raise InputError(f"{path} is a pipe or a device, and is read more than once. Write it to a file first.")
            self.file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}. Check the path and its permissions.") from error
        self._state = self._stat()

    def close(self) -> None:
        self.file.close()

    @abstractmethod
    def count(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """What each row holds, or an `InputError`."""

    def digest(self) -> str:
        """The SHA-256 of the whole file."""
        digest = hashlib.sha256()
        self.file.seek(0)
        while block := self.file.read(BLOCK):
            digest.update(block)
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Refuse a file that was changed since it was opened."""
        if self._stat() != self._state:
            raise InputError(f"{self.path} was changed while the job ran. Put it back as it was, and run the job again.")

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self.file.fileno())
        return status.st_size, status.st_mtime_ns


def row_problem(value: Any) -> InputError | None:
    """Why a row cannot come back in JSON: NaN, a table's dates or bytes, lists within lists without end."""
    try:
        text = json.dumps(value, allow_nan=False)
        most = text.count("[") + text.count("{")
        if most <= MAX_LEVELS or _levels(value) <= MAX_LEVELS:
            return None
    except ValueError:
        return InputError("the row holds NaN or Infinity, which are no numbers of JSON. Leave them out, or write null.")
    except TypeError as error:
        return InputError(f"the row holds what JSON cannot represent ({reason_of(error)}). Write it as a text.")
    except RecursionError:
        pass
    return InputError(f"the row is nested more than {MAX_LEVELS} levels deep. Write what is inside as a text.")


def _levels(value: Any) -> int:
    """How deep lists and objects are nested."""
    levels, inner = 0, [value]
    while inner:
        levels += 1
        held = (item.values() if isinstance(item, dict) else item for item in inner if isinstance(item, (dict, list)))
        inner = [item for items in held for item in items]
    return levels - 1


class LinesFile(InputFile):
    """A row on each line; lines of blanks are none."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        super().__init__(path)
        self.as_json = as_json

    def count(self) -> int:
        return sum(1 for _ in self._lines())

    def values(self) -> Iterator[Any]:
        for number, line in self._lines():
            yield self._parse(line, f"{self.path.name}, line {number}")

    def _parse(self, line: bytes | None, where: str) -> Any:
        if line is None:
            return InputError(f"{where}: longer than {MAX_LINE:,} bytes. Split it.")
        try:
            text = str(line, "utf-8").rstrip("\r\n")
            return json.loads(text) if self.as_json else text
        except UnicodeDecodeError as error:
            return InputError(f"{where}: not UTF-8 text ({error.reason}). Convert it first.")
        except (ValueError, RecursionError) as error:
            return InputError(f"{where}: not valid JSON ({reason_of(error)}).")

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        """The lines that are not blank, numbered from 1; None for one that is too long to be held in memory."""
        self.file.seek(0)
        number = 0
        while line := self.file.readline(MAX_LINE + 1):
            number += 1
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            if len(line) > MAX_LINE:
                while line and not line.endswith(b"\n"):
                    line = self.file.readline(BLOCK)
                yield number, None
            elif line.strip():
                yield number, line
