"""Tokenizers that were built from GGUF vocabularies, kept for the next time: finding a large one's merges takes seconds.

An entry's name is a hash of the vocabulary, of this code, and of the library's version; its first line is a hash of the
rest. What is damaged is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from glassformer.ground.files import write_bytes

MAX_ENTRIES = 8  # of tens of megabytes; the least recently used goes first
NOT_HASHED = "tokenizer.chat_template"
log = logging.getLogger("glassformer")

Built = tuple[tokenizers.Tokenizer, dict[str, str]]


def entry_path(folder: Path, metadata: Mapping[str, Any]) -> Path:
    """Where the tokenizer of these fields is kept, or would be."""
    digest = hashlib.sha256(f"{tokenizers.__version__} {_code()}".encode())
    for name in sorted(metadata):
        if name.startswith("tokenizer.") and name != NOT_HASHED:
            digest.update(f"\0{name}\0".encode())
            digest.update(_field_bytes(metadata[name]))
    return folder / f"{digest.hexdigest()}.json"


def read(path: Path) -> Built | None:
    """A tokenizer and its special tokens by name, if it is there and whole."""
    try:
        digest, content = path.read_bytes().split(b"\n", 1)
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return None
        special, backend = content.split(b"\n", 1)
        built = tokenizers.Tokenizer.from_buffer(backend), json.loads(special)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with it, it can be made again; the library raises plain ones
        log.debug(f"{path}: cannot be read: {error}")
        return None
    with suppress(OSError):
        path.touch()  # used now
    return built


def write(path: Path, backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> None:
    """Keep a tokenizer; where there is no place, it is built again the next time."""
    try:
        content = json.dumps(special).encode() + b"\n" + backend.to_str().encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        entries = sorted(path.parent.glob("*.json"), key=lambda entry: entry.stat().st_mtime)
        for entry in entries[:-MAX_ENTRIES]:
            entry.unlink(missing_ok=True)
    except Exception as error:  # a full disk, or a part that the library cannot write
        log.debug(f"{path}: cannot be kept: {error}")


def _field_bytes(value: Any) -> bytes:
    """A field's value, in a form that no two have in common; fast for lists of a kind."""
    if isinstance(value, list) and value:
        kinds = set(map(type, value))
        if kinds == {str}:
            return array("q", map(len, value)).tobytes() + "".join(value).encode("utf-8", "surrogatepass")
        if kinds == {float}:
            return array("d", value).tobytes()
        if kinds == {int}:
            with suppress(OverflowError):
                return array("q", value).tobytes()
    return repr(value).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1)
def _code() -> str:
    """A hash of the code that builds tokenizers."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
