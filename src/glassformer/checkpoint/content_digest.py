"""What a file holds, as a digest, and whether a file of the cache is still what was written.

Files of the cache are named after what they were made from. `content_digest` is a SHA-256 of all bytes of a source: path,
size and time can all stay the same when a file changes. Since that takes a second for each gigabyte, it is remembered for
as long as the file's inode and its time of change stay, which no program can set.

A file of the cache ends in a checksum over the rest (`seal`), compared whenever the file is opened (`is_intact`). It is
meant to find damage, not forgery, and so can be quick: the sums of the 64-bit numbers of each block, at about the speed at
which memory is read.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.stored_tensors import Bytes, ComputedFile, MappedFile, TensorFile
from glassformer.ground.errors import WriteError
from glassformer.ground.files import home, write_text

PIECE = 1 << 24  # bytes that one thread reads at a time
BLOCK = 1 << 16  # bytes of one sum
MAGIC = b"glass\0\0\1"
FOOTER = 64  # bytes
SETTLED = 2.0  # seconds after which another change would give a file another time
MAX_AGE = 90 * 86_400  # seconds that a digest is remembered


def content_digest(file: TensorFile) -> str:
    """A SHA-256 of everything in a file; of computed numbers, of what they are computed from."""
    if isinstance(file, ComputedFile):
        parts = [file.recipe, *(content_digest(source) for source in file.sources)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    if file.mapped is None:
        return hashlib.sha256(file.buffer.tobytes()).hexdigest()
    file = file.mapped
    memory = _memory_path(file)
    with suppress(OSError, UnicodeDecodeError):
        if memory is not None and len(digest := memory.read_text("ascii")) == 64:
            return digest
    with ThreadPoolExecutor(_threads()) as pool:
        pieces = pool.map(lambda begin: hashlib.sha256(file.read(begin, PIECE)).digest(), range(0, len(file), PIECE))
        digest = hashlib.sha256(b"".join(pieces)).hexdigest()
    file.check()
    if memory is not None:
        _remember(memory, digest)
    return digest


def stored_files(files: Iterable[TensorFile]) -> tuple[dict[Path, TensorFile], list[str]]:
    """The files that a model's numbers come from, by path, and the recipes by which some of them are computed."""
    stored: dict[Path, TensorFile] = {}
    recipes: set[str] = set()
    waiting = list({id(file): file for file in files}.values())
    while waiting:
        file = waiting.pop()
        if isinstance(file, ComputedFile):
            recipes.add(file.recipe)
            waiting += file.sources
        else:
            stored[file.path] = file
    return stored, sorted(recipes)


def _memory_path(file: MappedFile) -> Path | None:
    """Where the digest of a file in its present state is remembered; None if its time could hide another change."""
    status = file.status
    changed = max(status.st_mtime, status.st_ctime)
    if sys.platform == "win32" or time.time() - changed < SETTLED:  # Windows has no time of change
        return None
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return home() / "digests" / hashlib.sha256(f"{file.path.resolve()} {state}".encode()).hexdigest()[:32]


def _remember(memory: Path, digest: str) -> None:
    with suppress(OSError, WriteError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        for old in memory.parent.iterdir():
            if old.stat().st_mtime < time.time() - MAX_AGE:
                old.unlink()
        write_text(memory, digest)


def checksum(data: Bytes) -> bytes:
    """The footer of a file of these bytes."""
    whole = data.size // BLOCK * BLOCK
    rest = np.zeros(BLOCK, np.uint8)
    rest[: data.size - whole] = data[whole:]

    def sums(begin: int) -> Bytes:
        words = data[begin : min(begin + PIECE, whole)].view(np.uint64)
        blocks: npt.NDArray[np.uint64] = np.add.reduce(words.reshape(-1, BLOCK // 8), axis=1)
        return blocks.view(np.uint8)

    with ThreadPoolExecutor(_threads()) as pool:
        parts = [*pool.map(sums, range(0, whole, PIECE)), rest]
    digest = hashlib.sha256(np.concatenate(parts).tobytes()).digest()
    return (MAGIC + data.size.to_bytes(8, "little") + digest).ljust(FOOTER, b"\0")


def seal(path: Path) -> None:
    """Append its checksum to a file."""
    footer = checksum(np.frombuffer(MappedFile(path).buffer, np.uint8))
    with path.open("ab") as file:
        file.write(footer)


def is_intact(file: MappedFile) -> bool:
    """Whether a file ends in the checksum of the rest."""
    data = np.frombuffer(file.buffer, np.uint8)
    return data.size > FOOTER and checksum(data[:-FOOTER]) == data[-FOOTER:].tobytes()


def _threads() -> int:
    return min(8, os.cpu_count() or 1)
