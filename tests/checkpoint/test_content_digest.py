"""Digests of files, remembered as long as they cannot have changed; and checksums at the end of cached files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from glassformer.checkpoint import content_digest as module
from glassformer.checkpoint.content_digest import BLOCK, FOOTER, PIECE, content_digest, is_intact, seal
from glassformer.checkpoint.stored_tensors import BufferedFile, MappedFile
from glassformer.ground.errors import CheckpointError


@pytest.fixture
def file(tmp_path: Path, empty_home: Path) -> Path:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(1000))
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some seconds after all files were written."""
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 10)


def remembered(home: Path) -> list[Path]:
    return sorted((home / "digests").iterdir()) if (home / "digests").exists() else []


def test_the_digest_follows_the_content(file: Path, empty_home: Path) -> None:
    first = content_digest(MappedFile(file))
    status = file.stat()
    file.write_bytes(os.urandom(1000))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_digest(MappedFile(file)) != first
    assert not remembered(empty_home)  # it was too young


def test_a_digest_is_remembered(file: Path, empty_home: Path, later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = content_digest(MappedFile(file))
    (memory,) = remembered(empty_home)
    monkeypatch.setattr(MappedFile, "read", None)  # not read again
    assert content_digest(MappedFile(file)) == first
    memory.write_text("cut short")
    with pytest.raises(TypeError):
        content_digest(MappedFile(file))


def test_a_remembered_digest_is_not_used_for_a_changed_file(file: Path, empty_home: Path, later: None) -> None:
    """Its time can be set back; that leaves another trace."""
    first, status = content_digest(MappedFile(file)), file.stat()
    file.write_bytes(os.urandom(1000))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_digest(MappedFile(file)) != first
    assert len(remembered(empty_home)) == 2


def test_old_digests_are_forgotten(file: Path, empty_home: Path, later: None) -> None:
    old = empty_home / "digests" / "old"
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (1, 1))
    content_digest(MappedFile(file))
    assert len(remembered(empty_home)) == 1
    assert not old.exists()


def test_a_home_that_cannot_be_written(file: Path, empty_home: Path, later: None) -> None:
    empty_home.touch()
    assert content_digest(MappedFile(file)) == content_digest(MappedFile(file))


def test_bytes_in_memory(file: Path) -> None:
    parts = [BufferedFile(file, np.full(9, n, np.uint8)) for n in (1, 1, 2)]
    assert len({content_digest(part) for part in parts}) == 2


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, PIECE + BLOCK + 1])
def test_a_sealed_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(size))
    assert not is_intact(MappedFile(path))
    seal(path)
    assert path.stat().st_size == size + FOOTER
    assert is_intact(MappedFile(path))
    for at in {0, size // 2, size - 1, size, size + FOOTER - 1}:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 128]))
            file.flush()
            assert not is_intact(MappedFile(path)), at
            file.seek(at)
            file.write(bytes([byte]))
    os.truncate(path, size)
    assert not is_intact(MappedFile(path))


def test_a_file_that_changes_while_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped, read = MappedFile(file), MappedFile.read

    def truncate(self: MappedFile, offset: int, size: int) -> bytes:
        os.truncate(file, 10)
        return read(self, offset, size)

    monkeypatch.setattr(MappedFile, "read", truncate)
    with pytest.raises(CheckpointError, match="was cut short while it was in use: 10 of 1000 bytes are left"):
        content_digest(mapped)
