"""The ledger of a job: what is finished, in a file that only grows, so that a job that was killed can go on.

    {"ledger": 1, "job": {…}, …, "crc32": "8d3c1f02"}        the first line: which job it is
    {"row": 17, "failed": false, …, "crc32": "01b2c3d4"}     then one line for each finished row, as they finish

A line counts when its newline is there and its checksum is right. What follows the last such line was being written when
the process or the machine went down: it is cut off, and its rows are done again. Rows are on the disk at most a second
after they were appended; that a process is killed loses none of them. The file is locked while a job writes it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from glassformer.ground.errors import InputError, WriteError
from glassformer.ground.files import sync_folder, write_error
from glassformer.ground.ownership import NotCopied, try_lock
from glassformer.page.format import to_json

VERSION = 1
SYNC_SECONDS = 1.0  # of finished rows that a power cut may take
MISSING = -1  # the offset of a row that is not finished
BEGINNING = b'{"ledger": '
CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\n\Z')
note = logging.getLogger("glassformer").warning


class Ledger(NotCopied):
    """A ledger that is open for appending, and locked."""

    def __init__(self, path: Path) -> None:
        """Opens the file, makes it if there is none, and cuts off what was not written whole."""
        self.path = path
        self.header: dict[str, Any] | None = None  # None: nothing has been written yet
        self._offsets = array("q")  # of each row's line
        self._count = 0
        self._end = 0  # of the last whole line
        self._synced = time.monotonic()
        try:
            self._file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+")
        except OSError as error:
            raise write_error(path, error) from error
        try:
            if not try_lock(self._file):
                raise WriteError(f"{path} is being written by another process. Wait for it, or choose another output file.")
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None or not issubclass(kind, WriteError):
                self.sync()
        finally:
            self._file.close()

    # Reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many rows are finished."""
        return self._count

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and 0 <= row < len(self._offsets) and self._offsets[row] != MISSING

    def records(self) -> Iterator[dict[str, Any]]:
        """What was appended for each finished row, in the order of the rows."""
        with self._reader() as file:
            for offset in self._offsets:
                if offset != MISSING:
                    file.seek(offset)
                    yield json.loads(file.readline())

    def _reader(self) -> BinaryIO:
        """The file from its beginning, through the descriptor that holds the lock: on Windows no other can read it."""
        reader = os.fdopen(os.dup(self._file.fileno()), "rb")
        reader.seek(0)
        return reader

    def _recover(self) -> None:
        """Read what is there, and cut off what is not whole."""
        size = self._file.seek(0, os.SEEK_END)
        with self._reader() as file:
            for line in file:
                if not is_whole(line):
                    break
                data = json.loads(line)
                if self._end == 0:
                    self._read_header(data)
                else:
                    self._place(data["row"], self._end)
                self._end += len(line)
            if self.header is None:
                self._refuse_other_file(file)
        if size > self._end:
            if size > self._end + len(line):
                note(f"{self.path} is damaged at byte {self._end:,}: the rows behind that are done again.")
            self._truncate()

    def _read_header(self, data: Mapping[str, Any]) -> None:
        if data.get("ledger") != VERSION:
            raise InputError(
                f"{self.path} is the ledger of another version of Glassformer. Finish the job with that one, or remove it."
            )
        self.header = {name: value for name, value in data.items() if name not in ("ledger", "crc32")}

    def _refuse_other_file(self, file: BinaryIO) -> None:
        """A file without a whole header may be one whose header was being written; any other is somebody's."""
        file.seek(0)
        start = file.read(len(BEGINNING))
        if not BEGINNING.startswith(start):
            raise InputError(f"{self.path} is no ledger of a job. Remove it, or choose another output file.")

    def _place(self, row: int, offset: int) -> None:
        """Remember where a row's line begins."""
        if row >= len(self._offsets):
            self._offsets.extend([MISSING] * (row + 1 - len(self._offsets)))
        if self._offsets[row] == MISSING:
            self._count += 1
            self._offsets[row] = offset

    # Writing ----------------------------------------------------------------------------------------------------

    def start(self, header: Mapping[str, Any]) -> None:
        """Write the first line; it is on the disk when this returns."""
        self._append({"ledger": VERSION, **header})
        self.header = dict(header)
        self.sync()
        sync_folder(self.path.parent)

    def append(self, row: int, data: Mapping[str, Any]) -> None:
        """Write a finished row."""
        if row in self:
            raise AssertionError(f"row {row} is finished already")
        offset = self._end
        self._append({"row": row, **data})
        self._place(row, offset)
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Have all rows on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._write_error(error) from error
        self._synced = time.monotonic()

    def _append(self, data: Mapping[str, Any]) -> None:
        line = encode_line(data)
        try:
            self._file.seek(self._end)
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            self._truncate()
            raise self._write_error(error) from error
        self._end += len(line)

    def _truncate(self) -> None:
        with suppress(OSError):  # what is not whole is not counted the next time either
            self._file.truncate(self._end)

    def _write_error(self, error: OSError) -> WriteError:
        return WriteError(
            f"{self.path} cannot be written ({error.strerror or error}). "
            "The rows before are kept: make room for it, and run the same job again to go on."
        )


def encode_line(data: Mapping[str, Any]) -> bytes:
    """Data as a line with its checksum."""
    text = to_json(data, allow_nan=False).encode()[:-1]
    return b'%b, "crc32": "%08x"}\n' % (text, zlib.crc32(text))


def is_whole(line: bytes) -> bool:
    """Whether a line was written to its end, and is as it was written."""
    checksum = CHECKSUM.search(line, max(0, len(line) - 32))
    return checksum is not None and int(checksum[1], 16) == zlib.crc32(line[: checksum.start()])
