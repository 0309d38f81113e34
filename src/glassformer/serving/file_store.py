"""Files that clients leave with a server, and that it makes for them: in its own folder, bounded, gone with the server."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from glassformer.ground.errors import InputError, QueueFull
from glassformer.ground.ownership import NotCopied

SMALLEST = 4096  # bytes that a file counts for, at least, so that there cannot be too many of them


@dataclass(frozen=True)
class StoredFile:
    id: str
    owner: str  # the client that alone may see it
    name: str  # as the client calls it
    purpose: str
    path: Path
    bytes: int
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def cost(self) -> int:
        return max(self.bytes, SMALLEST)


class FileStore(NotCopied):
    """Thread-safe; the folder is made with the first file."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._files: dict[str, StoredFile] = {}
        self._lock = threading.Lock()
        self._folder: Path | None = None

    def add(self, owner: str, name: str, purpose: str, content: bytes) -> StoredFile:
        """Keep a file; refused where there is no room."""
        with self._lock:
            if max(len(content), SMALLEST) > self.room:
                raise QueueFull(f"files take {self.max_bytes:,} bytes here at most, and there is no room. Delete some.")
            path = self._new_path()
            path.write_bytes(content)
            return self._keep(owner, name, purpose, path)

    def adopt(self, owner: str, name: str, purpose: str, path: Path) -> StoredFile:
        """Keep a file that was made in the folder, for which there was room."""
        with self._lock:
            return self._keep(owner, name, purpose, path.rename(self._new_path()))

    def get(self, file_id: str) -> StoredFile:
        with self._lock:
            if (file := self._files.get(file_id)) is None:
                raise InputError(
                    f"there is no file {file_id!r} here. Files are gone when they are deleted or the server stops."
                )
            return file

    def delete(self, file_id: str) -> None:
        file = self.get(file_id)
        with self._lock:
            self._files.pop(file_id, None)
        file.path.unlink(missing_ok=True)

    def files(self, owner: str) -> list[StoredFile]:
        with self._lock:
            return [file for file in self._files.values() if file.owner == owner]

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self.max_bytes - sum(file.cost for file in self._files.values())

    @property
    def folder(self) -> Path:
        """Where the files are, for this user alone."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="glass-serve-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # when the process ends, at the latest
        return self._folder

    def close(self) -> None:
        with self._lock:
            folder, self._folder, self._files = self._folder, None, {}
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _new_path(self) -> Path:
        return self.folder / f"file-{secrets.token_hex(12)}.jsonl"

    def _keep(self, owner: str, name: str, purpose: str, path: Path) -> StoredFile:
        file = StoredFile(path.stem, owner, name, purpose, path, path.stat().st_size)
        self._files[file.id] = file
        return file
