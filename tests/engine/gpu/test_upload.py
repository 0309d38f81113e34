"""Bytes of a checkpoint on their way to the device: all of them, in pieces, or an error if the file does not hold still."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.checkpoint.stored_tensors import MappedFile, StoredTensor
from glassformer.engine.gpu import weights as upload
from glassformer.ground.errors import CheckpointError
from tests.engine.executors import write_checkpoint

CPU = torch.device("cpu")


@pytest.fixture
def stored(tmp_path: Path) -> StoredTensor:
    """1,000 numbers in the middle of a file."""
    numbers = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    path = tmp_path / "numbers"
    path.write_bytes(b"before" + numbers.tobytes() + b"after")
    return StoredTensor("numbers", "F32", (10, 100), MappedFile(path), 6, 4000)


@pytest.mark.parametrize("piece", [16, 900, 4000, 1 << 20])
def test_a_tensor_is_copied_in_pieces(piece: int, stored: StoredTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE", piece)
    monkeypatch.setattr(upload, "LEAST_PART", 300)  # so that threads read some of them
    target = torch.full((10, 100), torch.nan)
    upload.Upload(CPU).copy(stored, target)
    assert np.array_equal(target.numpy(), stored.to_float32())
    assert np.array_equal(stored.in_memory().to_float32(), stored.to_float32())


def cut(path: Path) -> None:
    os.truncate(path, 100)


def rewrite(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(("damage", "message"), [(cut, "was cut short while"), (rewrite, "was changed while")])
def test_a_file_that_changes_before_it_is_read(
    damage: Callable[[Path], None], message: str, stored: StoredTensor, tmp_path: Path
) -> None:
    damage(tmp_path / "numbers")
    with pytest.raises(CheckpointError, match=message):
        upload.Upload(CPU).copy(stored, torch.empty(10, 100))
    with pytest.raises(CheckpointError, match=message):
        stored.in_memory()


def test_a_file_that_is_cut_short_between_the_check_and_the_read(
    stored: StoredTensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping would end the process here."""
    cut(tmp_path / "numbers")
    monkeypatch.setattr(MappedFile, "check", lambda file: None)
    with pytest.raises(CheckpointError, match="was cut short while it was in use: it ends at byte 100"):
        stored.in_memory()


def test_a_disk_that_fails(stored: StoredTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError, match="some of it could not be read: Input/output error. Check the file and"):
        stored.in_memory()


def test_an_executor_of_a_file_that_was_cut_short(tmp_path: Path) -> None:
    subject = write_checkpoint(tmp_path, "llama", num_hidden_layers=1)
    _ = subject.opened.tensors
    os.truncate(tmp_path / "model.safetensors", 5000)
    with pytest.raises(CheckpointError, match="was cut short while"):
        subject.gpu()
