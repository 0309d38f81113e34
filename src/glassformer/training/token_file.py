"""A corpus as token ids in a file, mapped into memory: as large as the disk, and read where a batch needs it.

tokens.bin    the ids, one after the other, as 16 or 32 bits each
tokens.json   how many there are, of which vocabulary, and what they were made from
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import atomic_file, file_crc32, write_text

Ids = npt.NDArray[Any]
TOKENS, DESCRIPTION = "tokens.bin", "tokens.json"


@dataclass(frozen=True)
class TokenFileInfo:
    tokens: int
    dtype: str
    vocabulary: int  # every id is below
    source: str  # a fingerprint of the texts and the tokenizer
    crc32: str | None = None  # of the file of ids; older ones have none


def write_token_file(folder: Path, chunks: Iterable[Iterable[int]], vocabulary: int, source: str) -> None:
    """Ids as they come, into a folder."""
    dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic_file(folder / TOKENS) as path, path.open("r+b") as file:
        for chunk in chunks:
            ids = np.fromiter(chunk, dtype)
            ids.tofile(file)
            count += len(ids)
        file.flush()
        checksum = file_crc32(path)
    info = TokenFileInfo(count, dtype.name, vocabulary, source, checksum)
    write_text(folder / DESCRIPTION, json.dumps(asdict(info), indent=1))


def read_token_file(folder: Path) -> tuple[Ids, TokenFileInfo]:
    """The ids of a folder, mapped."""
    try:
        info = TokenFileInfo(**json.loads((folder / DESCRIPTION).read_text("utf-8")))
        ids: Ids = np.memmap(folder / TOKENS, np.dtype(info.dtype), mode="r") if info.tokens else np.zeros(0, info.dtype)
        damaged = info.crc32 is not None and file_crc32(folder / TOKENS) != info.crc32
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: holds no readable token file ({error}). Delete it, and it is made anew."
        ) from error
    if damaged or len(ids) != info.tokens or info.dtype not in ("uint16", "uint32"):
        raise CheckpointError(f"{folder}: its token file is damaged or not whole. Delete the folder, and it is made anew.")
    return ids, info
