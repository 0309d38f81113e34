"""A path to the right kind of checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.checkpoint import open_at
from glassformer.checkpoint.folder import FolderCheckpoint
from glassformer.checkpoint.gguf import GgufCheckpoint
from tests.checkpoint.files import refused, write_folder, write_gguf


def test_open_a_gguf_file(tmp_path: Path) -> None:
    checkpoint = open_at(write_gguf(tmp_path / "x.gguf"))
    assert isinstance(checkpoint, GgufCheckpoint)
    assert checkpoint.config["model_type"] == "llama"


def test_open_a_folder_with_one_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "qwen3")
    checkpoint = open_at(tmp_path)
    assert isinstance(checkpoint, GgufCheckpoint)
    assert checkpoint.path == path
    assert checkpoint.config["model_type"] == "qwen3"


def test_open_a_hub_folder_with_a_gguf_file_in_it(tmp_path: Path) -> None:
    write_gguf(write_folder(tmp_path, {}) / "x.gguf")
    checkpoint = open_at(tmp_path)
    assert isinstance(checkpoint, FolderCheckpoint)
    assert checkpoint.path == tmp_path


def test_open_a_folder_with_several_gguf_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name)
    refused(
        lambda: open_at(tmp_path), tmp_path, "holds 2 .gguf files", f"Give the path of one, such as {tmp_path / 'a.gguf'}"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "x.py", "nothing"])
def test_open_what_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name != "nothing":
        path.touch()
    refused(lambda: open_at(path), path, "not a checkpoint", "Give a folder that holds config.json", "or the .ckpt file")


def test_opening_reads_lazily(tmp_path: Path) -> None:
    checkpoint = open_at(tmp_path / "missing.gguf")
    refused(lambda: checkpoint.config, tmp_path / "missing.gguf", "the file is missing. Fetch or copy the checkpoint again.")
    assert open_at(tmp_path).path == tmp_path
