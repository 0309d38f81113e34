"""Folders, pipes, devices and broken links in the place of files: typed errors, and nothing that is waited for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassformer.checkpoint.stored_tensors import MappedFile
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular
from glassformer.model_files import open_model
from tests.checkpoint.files import refused
from tests.parity import reference
from tests.see.test_views import letters

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes in the file system")

ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (Path.mkdir, "is a folder, and a file is needed"),
    "pipe": (os.mkfifo, "is a pipe or a device, and a file is needed"),
    "broken link": (lambda path: path.symlink_to("nowhere"), "it is a link to nowhere, which is not there"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a pipe or a device, and a file is needed"),
}


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A pipe that is opened and has no writer would be waited for."""

    def expired(*_: object) -> None:
        raise TimeoutError("waited for a pipe")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    reference.write(folder, "llama")
    letters()[0].save(str(folder / "tokenizer.json"))
    return folder


FILES: dict[str, Callable[[Path], object]] = {
    "config.json": lambda folder: open_model(folder).config,
    "model.safetensors": lambda folder: open_model(folder).tensors,
    "tokenizer.json": lambda folder: open_model(folder).tokenizer,
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_folder(what: str, name: str, original: Path, tmp_path: Path) -> None:
    for file in original.iterdir():
        if file.name != name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    make, words = ODD[what]
    make(tmp_path / name)
    if (what, name) == ("broken link", "tokenizer.json"):
        words = "tokenizer"
    refused(lambda: FILES[name](tmp_path), tmp_path, words)


@pytest.mark.parametrize("what", [what for what in ODD if what not in ("folder", "broken link")])
@pytest.mark.parametrize("name", ["x.gguf", "x.ckpt", "x.bin"])
def test_a_file_by_itself(what: str, name: str, tmp_path: Path) -> None:
    make, words = ODD[what]
    make(tmp_path / name)
    if name == "x.bin":
        (tmp_path / "config.json").write_text("{}")
    refused(lambda: open_model(tmp_path / name).tensors, tmp_path / name, words)


@pytest.mark.parametrize("what", ODD)
def test_small_files(what: str, tmp_path: Path) -> None:
    make, words = ODD[what]
    make(tmp_path / "x")
    for read in (read_regular, MappedFile):
        refused(lambda read=read: read(tmp_path / "x"), tmp_path / "x", words)  # type: ignore[misc]


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").touch()
    monkeypatch.setattr(os, "open", refuse)  # root may read everything
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied. Check the path and its permissions"):
        read_regular(tmp_path / "x")
