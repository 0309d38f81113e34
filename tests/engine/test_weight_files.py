"""Files that change while a model over them runs: every pass notices, says so, and the process lives."""

from __future__ import annotations

import copy
import faulthandler
import io
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer import AutoModelForCausalLM
from glassformer.checkpoint.stored_tensors import BufferedFile, MappedFile
from glassformer.engine.cpu import weight_files, weights
from glassformer.engine.cpu.weight_files import WeightFiles
from glassformer.engine.protocol import Feed
from glassformer.ground.errors import CheckpointError
from tests.engine.cpu.packed import packed_model
from tests.engine.executors import EXECUTORS, Subject, write_checkpoint

pytestmark = [
    pytest.mark.usefixtures("one_thread", "home"),
    pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be changed there"),
]

MAPPING_EXECUTORS = ("plain", "cpu")  # those that read weights from mapped files while they run
CUT_SHORT = "was cut short while it was in use: .* bytes are left. Fetch it again, and load the model again"
CHANGED = "was changed while it was in use, so this is no longer the model that was loaded. Load it again"
UNREADABLE = "some of it could not be read: it was cut short while it was in use, or its disk has failed"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh place for tiles."""
    monkeypatch.setattr(weights, "home", lambda: tmp_path / "home")
    return tmp_path / "home"


def scores(executor: Any) -> np.ndarray:
    found: np.ndarray = executor.run([Feed(executor.open(), [4, 8, 15])])[0].host()
    return found


def overwrite(path: Path) -> None:
    """Other numbers, in place."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(range(256)))
    os.utime(path, ns=(1, 1))  # a clock may be too coarse to tell


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (lambda path: os.truncate(path, 100), CUT_SHORT),
    "emptied": (lambda path: path.write_bytes(b""), CUT_SHORT),
    "overwritten": (overwrite, CHANGED),
    "lengthened": (lambda path: os.truncate(path, path.stat().st_size + 1), CHANGED),
}


def safetensors(tmp_path: Path, name: str) -> tuple[Any, Path]:
    subject = write_checkpoint(tmp_path / "model", "llama").with_executor(name)
    return subject.executor(), tmp_path / "model" / "model.safetensors"


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("name", MAPPING_EXECUTORS)
class TestChangedFile:
    def test_before_the_first_token(self, name: str, what: str, tmp_path: Path) -> None:
        executor, path = safetensors(tmp_path, name)
        spoil, words = SPOILED[what]
        spoil(path)
        for _ in range(2):
            with pytest.raises(CheckpointError, match=words):
                scores(executor)

    def test_between_two_tokens(self, name: str, what: str, tmp_path: Path) -> None:
        executor, path = safetensors(tmp_path, name)
        row = executor.open()
        executor.run([Feed(row, [4, 8])])
        spoil, words = SPOILED[what]
        spoil(path)
        with pytest.raises(CheckpointError, match=words):
            executor.run([Feed(row, [15])])
        assert row.length == 2
        with pytest.raises(CheckpointError, match=words):
            executor.unembed(np.zeros((1, 48), np.float32))

    def test_during_a_pass(self, name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pages that are lost while they are read end no process."""
        executor, path = safetensors(tmp_path, name)
        spoil, words = SPOILED[what]
        check, calls = WeightFiles.check, []

        def spoil_after(self: WeightFiles) -> None:
            check(self)
            if not calls:
                spoil(path)
            calls.append(self)

        monkeypatch.setattr(WeightFiles, "check", spoil_after)
        with pytest.raises(CheckpointError, match=words):
            scores(executor)


def test_pages_that_the_disk_cannot_deliver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file looks as ever, but reading it failed: the error stays, as the lost pages do."""
    executor, path = safetensors(tmp_path, "cpu")
    os.truncate(path, 100)
    monkeypatch.setattr(MappedFile, "check", lambda self: None)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=UNREADABLE):
            scores(executor)


def test_another_library_may_have_put_its_own_handler_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and faulthandler do; the next model that is loaded comes first again."""
    safetensors(tmp_path, "cpu")
    faulthandler.disable()
    faulthandler.enable()
    (tmp_path / "next").mkdir()
    executor, path = safetensors(tmp_path / "next", "cpu")
    os.truncate(path, 100)
    monkeypatch.setattr(MappedFile, "check", lambda self: None)
    with pytest.raises(CheckpointError, match=UNREADABLE):
        scores(executor)


def test_other_models_go_on(tmp_path: Path) -> None:
    executor, path = safetensors(tmp_path, "cpu")
    other = write_checkpoint(tmp_path / "other", "llama").cpu()
    wanted = scores(other)
    os.truncate(path, 100)
    with pytest.raises(CheckpointError):
        scores(executor)
    assert np.array_equal(scores(other), wanted)


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_file_that_is_replaced_or_removed_stays_as_it_was(name: str, tmp_path: Path) -> None:
    executor, path = safetensors(tmp_path, name)
    wanted = scores(executor)
    (tmp_path / "new").write_bytes(b"other")
    (tmp_path / "new").replace(path)
    assert np.array_equal(scores(executor), wanted)
    path.unlink()
    assert np.array_equal(scores(executor), wanted)


def test_weights_on_a_device_need_no_file(tmp_path: Path) -> None:
    executor, path = safetensors(tmp_path, "gpu")
    wanted = scores(executor)
    overwrite(path)
    assert np.array_equal(scores(executor), wanted)


class TestTiles:
    def test_truncated_tiles(self, tmp_path: Path, home: Path) -> None:
        executor = packed_model(tmp_path / "x.gguf", "Q4_0").cpu()
        (path,) = (home / "tiles").iterdir()
        os.truncate(path, 100)
        with pytest.raises(CheckpointError, match=CUT_SHORT):
            scores(executor)
        assert scores(Subject(tmp_path / "x.gguf").cpu()).size  # made anew

    def test_a_file_that_is_all_in_tiles_is_needed_no_longer(self, tmp_path: Path) -> None:
        executor = packed_model(tmp_path / "x.gguf", "Q4_0").cpu()
        wanted = scores(executor)
        os.truncate(tmp_path / "x.gguf", 100)
        assert np.array_equal(scores(executor), wanted)


@pytest.mark.parametrize("executor", MAPPING_EXECUTORS)
def test_what_a_loaded_model_says(executor: str, tmp_path: Path) -> None:
    from tests.see import models

    folder, _ = models.folder("llama", "causal")
    copied = tmp_path / "copy"
    copied.mkdir()
    for file in folder.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    model = glassformer.load(copied, executor=executor)
    reading = model.read("the cat")
    asks: list[Callable[[], object]] = [
        lambda: model.watch("the cat", max_new_tokens=2),
        lambda: reading.at("blocks.0.residual"),
        lambda: reading.lens(),
        lambda: list(model.stream("the cat")),
    ]
    for ask in asks:
        ask()
    os.truncate(copied / "model.safetensors", 50)
    for ask in asks[:2] + asks[3:]:
        with pytest.raises(CheckpointError, match=CUT_SHORT):
            ask()


class TestModules:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_checkpoint(tmp_path / "model", "llama").folder

    def test_a_forward_pass(self, folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder)
        os.truncate(folder / "model.safetensors", 100)
        with pytest.raises(CheckpointError, match=CUT_SHORT):
            model(torch.tensor([[4, 8]]))
        with pytest.raises(CheckpointError, match=CUT_SHORT):
            model.generate(torch.tensor([[4, 8]]), max_new_tokens=2)

    def test_copies_need_no_file(self, folder: Path) -> None:
        ids = torch.tensor([[4, 8]])
        model = AutoModelForCausalLM.from_pretrained(folder)
        copied, wide = copy.deepcopy(model), AutoModelForCausalLM.from_pretrained(folder).double()
        pickled = pickle.loads(pickle.dumps(model))
        stream = io.BytesIO()
        torch.save(model.state_dict(), stream)
        wanted = model(ids).logits
        os.truncate(folder / "model.safetensors", 100)
        for other in (copied, pickled):
            assert torch.equal(other(ids).logits, wanted)
        assert torch.allclose(wide(ids).logits.float(), wanted, atol=1e-4)

    def test_a_pickled_checkpoint(self, folder: Path) -> None:
        weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        torch.save(weights, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        model = AutoModelForCausalLM.from_pretrained(folder)
        executor = Subject(folder).cpu()
        wanted = scores(executor)
        assert np.array_equal(scores(executor), wanted)
        os.truncate(folder / "pytorch_model.bin", 100)
        for act in (lambda: model(torch.tensor([[4]])), lambda: scores(executor)):
            with pytest.raises(CheckpointError, match=CUT_SHORT):
                act()


def test_bytes_in_memory_are_not_guarded(tmp_path: Path) -> None:
    assert not WeightFiles([BufferedFile(tmp_path, np.zeros(9, np.uint8))]).files


def test_nothing_is_built_to_guard_a_pytorch_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_files, "_is_built", lambda: False)
    model = AutoModelForCausalLM.from_pretrained(write_checkpoint(tmp_path, "llama").folder)
    assert {mapping.guard for mapping in model.weight_files.mappings} == {-1}
    os.truncate(tmp_path / "model.safetensors", 100)
    with pytest.raises(CheckpointError, match=CUT_SHORT):
        model(torch.tensor([[4]]))
