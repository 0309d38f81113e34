"""Files and folders that are written whole or not at all: on a full disk, and when the writer is killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer import AutoModelForCausalLM
from glassformer.checkpoint import open_at
from glassformer.checkpoint.gguf_writer import OutputTensor, write_gguf
from glassformer.cli.chat.conversation import Conversation, Message
from glassformer.ground import files as atomic_files
from glassformer.ground.errors import CheckpointError, WriteError
from glassformer.ground.files import (
    atomic_file,
    atomic_save,
    finish_saves,
    prepared_target,
    temporary_folder,
    write_bytes,
    write_text,
)
from glassformer.model_files import AutoTokenizer
from tests.parity import reference
from tests.patience import patience
from tests.see import models
from tests.see.models import both

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and locks of POSIX")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as a full disk would not."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def save_recording(folder: Path) -> None:
    both("gpt2").reading().record("embedding", folder=folder)


def save_gguf(folder: Path) -> None:
    rows = np.zeros((64, 64), np.float32)
    write_gguf(folder / "x.gguf", "odd", {}, [OutputTensor("a", "F32", (64, 64), lambda: lambda *_: rows)])


def save_view(suffix: str) -> Callable[[Path], object]:
    return lambda folder: both("gpt2").model.watch("a b", max_new_tokens=2).save(folder / f"run{suffix}")


SAVES: dict[str, Callable[[Path], object]] = {
    "a receipt": save_view(".json"),
    "a page": save_view(".html"),
    "a text": save_view(".txt"),
    "a conversation": lambda folder: Conversation("x", [Message("user", "hello " * 99)]).save(folder / "talk.json"),
    "a GGUF file": save_gguf,
    "a recording": save_recording,
    "a model": lambda folder: AutoModelForCausalLM.from_pretrained(models.folder("gpt2", "CausalLM")[0]).save_pretrained(
        folder
    ),
    "a tokenizer": lambda folder: both("gpt2").model.tokenizer.save_pretrained(folder),
}


class TestFullDisk:
    @pytest.mark.parametrize("what", SAVES)
    def test_the_old_files_stay_whole(self, what: str, tmp_path: Path) -> None:
        SAVES[what](tmp_path)
        before = contents(tmp_path)
        with largest_file(64), pytest.raises(WriteError, match="cannot be written .*(choose|Choose) another place"):
            SAVES[what](tmp_path)
        assert contents(tmp_path) == before

    def test_a_new_file_is_not_there(self, tmp_path: Path) -> None:
        with largest_file(4), pytest.raises(WriteError, match=r"new.txt cannot be written \(File too large\)"):
            write_text(tmp_path / "new.txt", "hello")
        assert not list(tmp_path.iterdir())


class TestTarget:
    def test_permissions_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        write_text(path, "a", mode=0o600)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)
        write_text(path, "b")
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("b", 0o640)
        mask = os.umask(0o027)
        try:
            write_text(tmp_path / "new", "c")
        finally:
            os.umask(mask)
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640

    @pytest.mark.parametrize("what", SAVES)
    @pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
    def test_what_is_saved_follows_the_umask(self, what: str, mask: int, mode: int, tmp_path: Path) -> None:
        """Also where a library writes through a private file of its own, as safetensors does."""
        before = os.umask(mask)
        try:
            SAVES[what](tmp_path / "saved" if what in ("a model", "a recording", "a tokenizer") else tmp_path)
        finally:
            os.umask(before)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
        assert modes
        assert set(modes.values()) == {mode}, modes

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("file")
        for text in ("a", "b"):  # a broken link first
            write_text(tmp_path / "link", text)
            assert (tmp_path / "link").is_symlink()
            assert (tmp_path / "file").read_text() == text

    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "file").touch()
        os.mkfifo(tmp_path / "pipe")
        refusals = {
            tmp_path: r"it is a folder\). Give the name of a file in it",
            tmp_path / "pipe": r"it is a device or a pipe, not a file\). Choose another place",
            Path("/dev/null"): "it is a device or a pipe",
            tmp_path / "loop": "cannot be written",
            tmp_path / "file" / "x": r"Not a directory\). Choose another place",
            tmp_path / "no" / "x": r"No such file or directory\). Make the folder first",
            tmp_path / ("x" * 256): r"File name too long\). Choose a shorter name",
        }
        for path, words in refusals.items():
            with pytest.raises(WriteError, match=words):
                write_text(path, "x")
        assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)

    def test_a_file_that_may_not_be_changed_is_not_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "x").write_text("old")
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may change everything
        with pytest.raises(WriteError, match=r"Permission denied\). Check its permissions"):
            write_text(tmp_path / "x", "new")

    @pytest.mark.parametrize("name", ["x" * 255, "ä" * 127, "[a]*?.json", "-x", "a\nb"])
    def test_every_name(self, name: str, tmp_path: Path) -> None:
        left = tmp_path / f"{atomic_files._hidden_stem(name)}.left.part"
        left.touch()
        (tmp_path / ".axx.json.other.part").touch()
        write_bytes(tmp_path / name, b"x")
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".axx.json.other.part", name])


def killed(code: str, *arguments: object) -> None:
    """Run code that prints a line, and kill it there."""
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    process.kill()
    process.stdout.close()
    assert process.wait(patience(60)) == -signal.SIGKILL


class TestKilledWriter:
    def test_a_file(self, tmp_path: Path) -> None:
        code = """
import sys, time
from pathlib import Path
from glassformer.ground.files import atomic_file
with atomic_file(Path(sys.argv[1])) as part:
    part.write_text("half")
    print("now", flush=True)
    time.sleep(60)
"""
        (tmp_path / "x").write_text("old")
        killed(code, tmp_path / "x")
        assert (tmp_path / "x").read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 2
        write_text(tmp_path / "x", "new")
        assert contents(tmp_path) == {"x": b"new"}

    def test_a_folder(self, tmp_path: Path) -> None:
        code = """
import sys, time
from pathlib import Path
from glassformer.ground.files import atomic_save
with atomic_save(Path(sys.argv[1]), "key", lambda name: True) as work:
    (work / "key").write_text("half")
    print("now", flush=True)
    time.sleep(60)
"""
        (tmp_path / "key").write_text("old")
        killed(code, tmp_path)
        finish_saves(tmp_path)
        assert (tmp_path / "key").read_text() == "old"
        with atomic_save(tmp_path, "key", lambda name: True) as work:
            (work / "key").write_text("new")
        assert contents(tmp_path) == {"key": b"new"}

    def test_what_a_living_process_writes_is_left_alone(self, tmp_path: Path) -> None:
        with atomic_file(tmp_path / "x") as part, temporary_folder(tmp_path, "work-") as folder:
            write_text(tmp_path / "x", "other")
            with temporary_folder(tmp_path, "work-"):
                pass
            assert part.exists()
            assert folder.exists()


class Killed(BaseException):
    """In place of a signal: nothing of the writer's own runs that would matter."""


class TestInterruptedSave:
    """A save into a folder that has a model, interrupted between any two steps of putting the new files in place."""

    def save(self, folder: Path, version: str, shards: int) -> None:
        with atomic_save(folder, "config.json", lambda name: name.startswith("model")) as work:
            for name in ("config.json", *(f"model-{shard}-of-{shards}" for shard in range(shards))):
                (work / name).write_text(version)

    def test_after_every_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        states = set()
        for steps in range(20):
            folder = tmp_path / str(steps)
            self.save(folder, "old", 3)
            (folder / "README").write_text("mine")
            with monkeypatch.context() as patch:
                self.kill_after(steps, patch)
                with suppress(Killed):
                    self.save(folder, "new", 2)
            seen = contents(folder)
            versions = {seen[name] for name in seen if name.startswith(("config", "model"))}
            assert "config.json" not in seen or len(versions) == 1, f"a mixture after {steps} steps"
            states.add("config.json" in seen and versions.pop())
            finish_saves(folder)
            seen = {name: text for name, text in contents(folder).items() if not name.startswith(".saving-")}
            assert seen.pop("README") == b"mine"
            assert set(seen.values()) in ({b"old"}, {b"new"})
            assert len(seen) == (4 if b"old" in seen.values() else 3)
        assert states == {b"old", False, b"new"}

    @staticmethod
    def kill_after(steps: int, patch: pytest.MonkeyPatch) -> None:
        left = [steps]

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return function(*args, **kwargs)

            return call

        for name in ("rename", "replace", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        removed = atomic_files.shutil.rmtree  # the killed writer would not have cleaned up after itself
        patch.setattr(atomic_files.shutil, "rmtree", lambda path, **kwargs: removed(path, **kwargs) if left[0] else None)

    def test_a_model_that_was_complete_is_loaded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reference.write(tmp_path, "llama", hidden_size=48)
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        with monkeypatch.context() as patch:
            self.kill_after(2, patch)  # renamed, and the old config removed
            with pytest.raises(Killed):
                model.save_pretrained(tmp_path)
        assert not (tmp_path / "config.json").exists()
        assert open_at(tmp_path).config["hidden_size"] == 48
        assert not list(tmp_path.glob(".*"))

    def test_a_folder_that_cannot_be_finished(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.save(tmp_path, "old", 1)
        with monkeypatch.context() as patch:
            self.kill_after(1, patch)
            with pytest.raises(Killed):
                self.save(tmp_path, "new", 1)

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "replace", refuse)
        with pytest.raises(WriteError, match=r"a save was interrupted, .* \(Permission denied\). Make the folder writable"):
            open_at(tmp_path)


def test_a_place_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    for name, message in (
        ("", "it is a folder"), ("file/x", "A folder is needed there"),
        ("a\0b", "Choose another name"), ("n" * 256, "shorter name"),
    ):  # fmt: skip
        with pytest.raises(WriteError, match=message), prepared_target(tmp_path / name):
            pytest.fail("refused too late")
    with prepared_target(tmp_path / "file"), prepared_target(tmp_path / "new" / "folder" / "x"), prepared_target(None):
        assert (tmp_path / "file").read_bytes() == b"before"
        assert not list((tmp_path / "new" / "folder").iterdir())
    assert (tmp_path / "new" / "folder").is_dir()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_work_that_ends_early_leaves_no_folder(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "old").mkdir()
    for name in ("new/folder/x", "old/x", "old/new/x"):
        with pytest.raises(error), prepared_target(tmp_path / name):
            raise error
    with suppress(error), prepared_target(tmp_path / "kept" / "x"):
        (tmp_path / "kept" / "x").write_bytes(b"something")
        raise error
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["kept", "kept/x", "old"]


def test_a_saved_tokenizer_leaves_no_template_of_an_earlier_one(tmp_path: Path) -> None:
    tokenizer = both("gpt2").model.tokenizer
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{{ messages }}"
        tokenizer.save_pretrained(tmp_path)
        assert (tmp_path / "chat_template.jinja").exists()
        tokenizer.chat_template = None
        tokenizer.save_pretrained(tmp_path)
    finally:
        tokenizer.chat_template = template
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template is None
    json.loads((tmp_path / "tokenizer.json").read_text())


def test_a_disk_that_fills_while_recording_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of a mapped file is taken before it is written to."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WriteError, match=r"No space left on device\). Free some space"):
        save_recording(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_config_is_still_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json: the file"):
        open_at(tmp_path).config  # noqa: B018
