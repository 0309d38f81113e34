"""Names to paths, and fetching: what is here is used, what is fetched appears whole or not at all. No network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, errors, snapshot_download

from glassformer.checkpoint import local_cache
from glassformer.checkpoint import locate as module
from glassformer.checkpoint.catalogue import CATALOGUE, CatalogueEntry, Hub, SplitFile, Wheel
from glassformer.checkpoint.locate import CheckpointPart, fetch, hub_repositories, local_path, locate, pull
from glassformer.ground.errors import CheckpointError, FetchError, InputError, ModelNotFound
from glassformer.ground.files import home
from tests.checkpoint.files import refused

# Names ----------------------------------------------------------------------------------------------------------


def test_locate_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").touch()
    assert locate(tmp_path) == locate(str(tmp_path)) == tmp_path
    assert locate(tmp_path / "x.gguf") == tmp_path / "x.gguf"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert locate("~/x.gguf") == tmp_path / "x.gguf"


@pytest.mark.parametrize("name", ["smollm2", "org/name"])
def test_a_path_wins_over_catalogue_and_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate(name) == Path(name)


@pytest.mark.parametrize("name", ["./x", "../x", "/no/such/thing", "~/no/such/thing", "~no-such-user/x", "x.gguf",
                                  "org/x.gguf", "org/x.safetensors", "org/x.bin", "x.ckpt", "/" + "x" * 5000])  # fmt: skip
def test_locate_a_missing_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused(lambda: locate(name), f"no file or folder {name!r}", "Check the path.", kind=ModelNotFound)


@pytest.mark.parametrize(("name", "suggestion"), [
    ("smolm2", "Did you mean 'smollm2'?"), ("qwen3-06b", "Did you mean 'qwen3-0.6b'?"), ("Who are you?", ""), ("", ""),
    ("a/b/c", ""), ("x" * 5000, ""), ("x\0y", ""),
])  # fmt: skip
def test_locate_an_unknown_name_suggests_the_nearest(name: str, suggestion: str) -> None:
    words = (f"no model {name!r}.", suggestion, "Give a path, a hub id such as", *CATALOGUE)
    refused(lambda: locate(name), *words, kind=ModelNotFound)


def test_catalogue_entries_are_complete() -> None:
    assert "smollm2" in CATALOGUE
    for entry in CATALOGUE.values():
        assert entry.about
        assert entry.licence
        for source in entry.sources:
            wheels = (source,) if isinstance(source, Wheel) else source.wheels if isinstance(source, SplitFile) else ()
            assert all(len(bytes.fromhex(wheel.sha256)) == 32 for wheel in wheels)


def test_well_known_names_have_a_hub_source() -> None:
    names = ("gpt2", "bert-base-uncased", "distilbert-base-uncased", "roberta-base", "t5-small", "bart-base", "minilm")
    for name in (*names, "gemma3-270m"):
        hub = CATALOGUE[name].sources[-1]
        assert isinstance(hub, Hub)
        assert module.HUB_ID.fullmatch(hub.repository)


# Home -----------------------------------------------------------------------------------------------------------

BASE = Path("/base")
HOMES = [  # (platform, what is set, where things are kept)
    ("linux", {"GLASS_HOME": "/here", "XDG_CACHE_HOME": "/base"}, Path("/here")),
    ("win32", {"GLASS_HOME": "/here", "LOCALAPPDATA": "/base"}, Path("/here")),
    ("linux", {"GLASS_HOME": "~/here"}, BASE / "here"),
    ("linux", {"XDG_CACHE_HOME": "/xdg", "LOCALAPPDATA": "/app"}, Path("/xdg/glassformer")),
    ("darwin", {}, BASE / ".cache" / "glassformer"),
    ("linux", {"GLASS_HOME": "", "XDG_CACHE_HOME": ""}, BASE / ".cache" / "glassformer"),
    ("win32", {"XDG_CACHE_HOME": "/xdg", "LOCALAPPDATA": "/app"}, Path("/app/glassformer")),
    ("win32", {}, BASE / "AppData" / "Local" / "glassformer"),
    ("win32", {"LOCALAPPDATA": ""}, BASE / "AppData" / "Local" / "glassformer"),
]


@pytest.mark.parametrize(("platform", "environment", "wanted"), HOMES)
def test_glass_home_on_each_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], wanted: Path
) -> None:
    for name in ("GLASS_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/base", "USERPROFILE": "/base", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert home() == wanted


# Wheels ---------------------------------------------------------------------------------------------------------

MEMBERS = {
    "fake/model.gguf": b"weights",
    "fake/model/config.json": b"{}",
    "fake/model/deep/tokenizer.json": b"[]",
    "fake/__init__.py": b"raise SystemExit('nothing from a wheel is ever run')",
    "fake-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n",
    "fake-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "fake-1.0.dist-info/RECORD": b"",
}
ARCHIVE = "fake-1.0-py3-none-any.whl"
Seen = list[tuple[str, int, int]]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    path = tmp_path / "index" / ARCHIVE
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.mkdir("fake/model/empty")
        for name, data in MEMBERS.items():
            wheel.writestr(name, data)
    return path


Shelf = Callable[..., Wheel]


@pytest.fixture
def shelf(archive: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Puts a model called 'fake', which comes in the archive, into the catalogue."""

    def put(member: str = "fake/model.gguf", sha256: str | None = None) -> Wheel:
        digest = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
        wheel = Wheel("fake", "1.0", digest, member, megabytes=3)
        monkeypatch.setitem(CATALOGUE, "fake", CatalogueEntry("nothing", "none", (wheel,)))  # type: ignore[misc]
        return wheel

    return put


@pytest.fixture
def downloads(archive: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Downloading is copying; the list tells what was copied, and where to."""
    made: list[Path] = []

    def download(wheel: Wheel, folder: Path, progress: module.Progress | None) -> Path:
        made.append(Path(shutil.copy(archive, folder)))
        if progress:
            progress(wheel.project, 3, 3)
        return made[-1]

    monkeypatch.setattr(module, "_download", download)
    return made


def left_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def test_a_file_out_of_a_wheel(shelf: Shelf, downloads: list[Path], empty_home: Path) -> None:
    shelf()
    assert local_path("fake") is None
    seen: Seen = []
    path = locate("fake", progress=lambda *step: seen.append(step))
    assert path == empty_home / "wheels" / "fake-1.0" / "model.gguf" == local_path("fake")
    assert path.read_bytes() == b"weights"
    assert seen == [("fake", 3, 3)]
    assert [one for one in left_in(empty_home) if one.is_file()] == [path]
    assert not downloads[0].parent.exists()


def test_a_folder_out_of_a_wheel(shelf: Shelf, downloads: list[Path], empty_home: Path) -> None:
    shelf("fake/model/")
    path = locate("fake")
    assert path == empty_home / "wheels" / "fake-1.0" / "model"
    files = {one.relative_to(path).as_posix(): one.read_bytes() for one in left_in(path) if one.is_file()}
    assert files == {"config.json": b"{}", "deep/tokenizer.json": b"[]"}


@pytest.mark.parametrize("member", ["fake/model.gguf", "fake/model/"])
def test_a_local_copy_is_not_fetched_again(shelf: Shelf, downloads: list[Path], member: str) -> None:
    shelf(member)
    assert locate("fake") == locate("fake") == fetch("fake")
    assert len(downloads) == 1


@pytest.mark.parametrize("member", ["fake/model.gguf", "fake/model/"])
def test_two_processes_that_fetch_at_once(
    shelf: Shelf, downloads: list[Path], member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds the first one's in place when it is done, and is content with that."""
    shelf(member)
    download = module._download

    def overtaken(*given: Any) -> Path:
        monkeypatch.setattr(module, "_download", download)
        assert locate("fake").exists()
        return download(*given)

    monkeypatch.setattr(module, "_download", overtaken)
    path = locate("fake")
    assert len(downloads) == 2
    assert path == local_path("fake")
    assert path.is_dir() or path.read_bytes() == b"weights"


def test_move_into_place_fails_without_a_target(tmp_path: Path) -> None:
    (tmp_path / "whole").write_text("x")
    with pytest.raises(OSError, match="not here"):
        module._move_into_place(tmp_path / "not here", tmp_path / "there" / "whole")


def test_a_wheel_with_the_wrong_hash_is_refused(shelf: Shelf, downloads: list[Path], empty_home: Path) -> None:
    wheel = shelf(sha256="ab" * 32)
    words = (ARCHIVE, "SHA-256", wheel.sha256[:16], "It was not opened", "Check the package index that pip is set to use.")
    refused(lambda: locate("fake"), "'fake' could not be fetched.", *words, kind=FetchError)
    assert left_in(empty_home) == []
    assert local_path("fake") is None


@pytest.mark.parametrize("member", ["fake/other.gguf", "fake/other/", "fake/model"])
def test_a_wheel_without_its_member(shelf: Shelf, downloads: list[Path], empty_home: Path, member: str) -> None:
    shelf(member)
    refused(lambda: locate("fake"), ARCHIVE, f"does not hold {member!r}", "path of a local copy", kind=FetchError)
    assert left_in(empty_home) == []


@pytest.mark.parametrize("where", ["_download", "_sha256", "_unpack"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_fetch_leaves_nothing(
    shelf: Shelf, downloads: list[Path], empty_home: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: type
) -> None:
    shelf("fake/model/")
    whole = getattr(module, where)

    def interrupted(*arguments: Any) -> None:
        whole(*arguments)
        assert left_in(empty_home)
        raise error

    monkeypatch.setattr(module, where, interrupted)
    with pytest.raises(error):
        locate("fake")
    assert left_in(empty_home) == []
    monkeypatch.setattr(module, where, whole)
    assert locate("fake").exists()


def test_an_interrupted_copy_leaves_nothing(
    shelf: Shelf, downloads: list[Path], empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(source: Any, target: Any, size: int) -> None:
        target.write(source.read(3))
        target.flush()
        raise KeyboardInterrupt

    shelf()
    monkeypatch.setattr(shutil, "copyfileobj", copy)
    with pytest.raises(KeyboardInterrupt):
        locate("fake")
    assert left_in(empty_home) == []


def test_fetch_to_a_full_disk(
    shelf: Shelf, downloads: list[Path], empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    shelf()
    monkeypatch.setattr(shutil, "copyfileobj", full)
    words = (empty_home, "cannot be written to (No space left on device)", "Fix that, or set GLASS_HOME")
    refused(lambda: locate("fake"), *words, kind=FetchError)
    assert left_in(empty_home) == []


def test_glass_home_that_is_no_folder(shelf: Shelf, downloads: list[Path], empty_home: Path) -> None:
    shelf()
    empty_home.touch()
    refused(lambda: locate("fake"), empty_home, "cannot be written to", "set GLASS_HOME", kind=FetchError)
    assert downloads == []


# A file in several wheels ---------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SplitFile]:
    """Puts a model called 'fake', cut into three wheels, into the catalogue; pip finds them in a folder."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))

    def put(contents: bytes = b"one two three", missing: int = 0) -> SplitFile:
        wheels = []
        for number, text in enumerate(("one ", "two ", "three"), 1):
            path = tmp_path / "index" / f"part{number}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(f"part{number}/x.gguf.part{number}", text)
                for name in ("METADATA", "WHEEL", "RECORD"):
                    data = MEMBERS[f"fake-1.0.dist-info/{name}"].replace(b"fake", f"part{number}".encode())
                    wheel.writestr(f"part{number}-1.0.dist-info/{name}", data)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            wheels.append(Wheel(f"part{number}", "1.0", digest, f"part{number}/x.gguf.part{number}", 1))
            if number == missing:
                path.unlink()
        joined = SplitFile("x.gguf", tuple(wheels), hashlib.sha256(contents).hexdigest())
        monkeypatch.setitem(CATALOGUE, "fake", CatalogueEntry("nothing", "none", (joined,)))  # type: ignore[misc]
        return joined

    return put


@pytest.fixture
def without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloading is copying from the index's folder."""

    def download(wheel: Wheel, folder: Path, progress: module.Progress | None) -> Path:
        return Path(shutil.copy(tmp_path / "index" / f"{wheel.project}-{wheel.version}-py3-none-any.whl", folder))

    monkeypatch.setattr(module, "_download", download)


@pytest.mark.processes
def test_split_file_is_joined(parts: Callable[..., SplitFile], empty_home: Path) -> None:
    parts()
    assert local_path("fake") is None
    seen: Seen = []
    path = locate("fake", progress=lambda *step: seen.append(step))
    assert path == local_path("fake") == empty_home / "wheels" / "part1-1.0" / "x.gguf"
    assert path.read_bytes() == b"one two three"
    assert list(dict.fromkeys(what for what, _, _ in seen)) == [f"fetching part{number}==1.0" for number in (1, 2, 3)]
    assert [one for one in left_in(empty_home / "wheels") if one != path.parent] == [path]
    assert fetch("fake") == path


@pytest.mark.processes
def test_an_interrupted_split_file_resumes(parts: Callable[..., SplitFile], empty_home: Path) -> None:
    parts(missing=3)
    refused(lambda: locate("fake"), "pip could not fetch part3==1.0", kind=FetchError)
    assert local_path("fake") is None
    parts()
    seen: Seen = []
    assert locate("fake", progress=lambda *step: seen.append(step)).read_bytes() == b"one two three"
    assert {what for what, _, _ in seen} == {"fetching part3==1.0"}


@pytest.mark.usefixtures("without_pip")
def test_split_file_with_the_wrong_hash(parts: Callable[..., SplitFile], empty_home: Path) -> None:
    parts(b"something else")
    refused(lambda: locate("fake"), "x.gguf: the SHA-256 of its joined parts is", "Fetch it again.", kind=FetchError)
    assert [one for one in left_in(empty_home) if one.is_file()] == []


@pytest.mark.usefixtures("without_pip")
def test_pull_checks_a_split_file_again(parts: Callable[..., SplitFile]) -> None:
    parts()
    path = pull("fake")
    path.write_bytes(b"damaged")
    assert locate("fake").read_bytes() == b"damaged"
    assert pull("fake").read_bytes() == b"one two three"


# pip ------------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_pip_fetches_from_where_it_is_set_to(
    shelf: Shelf, archive: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real one, with a folder for an index: the user's settings are pip's own."""
    shelf()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    seen: Seen = []
    path = locate("fake", progress=lambda *step: seen.append(step))
    assert path.read_bytes() == b"weights"
    assert seen[-1] == ("fetching fake==1.0", 3_000_000, 3_000_000)
    assert all(what == "fetching fake==1.0" and total == 3_000_000 for what, _, total in seen)
    assert [one for one in left_in(empty_home) if one.is_file()] == [path]


@pytest.mark.processes
def test_pip_without_an_index(shelf: Shelf, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    words = ("pip could not fetch fake==1.0 (Could not find a version", "Check the network and pip's index settings")
    error = refused(lambda: locate("fake"), "'fake' could not be fetched.", *words, kind=FetchError)
    assert "\n" not in str(error)
    assert left_in(empty_home) == []


class Process:
    """Stands in for pip: what happens each time somebody waits for it, then its complaint."""

    def __init__(self, *events: type[BaseException], complaint: str = "", returncode: int = 1) -> None:
        self.events = list(events)
        self.complaint = complaint
        self.status = returncode
        self.returncode: int | None = None
        self.ended = False

    def communicate(self, timeout: float) -> tuple[None, str]:
        if self.events:
            error = self.events.pop(0)
            raise subprocess.TimeoutExpired("pip", timeout) if error is subprocess.TimeoutExpired else error
        self.returncode = self.status
        return None, self.complaint

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.ended = True

    def wait(self) -> None:
        self.returncode = -15


def test_fetch_without_pip(shelf: Shelf, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Process(complaint="/bin/python: No module named pip\n"))
    refused(lambda: locate("fake"), "This Python has no pip: run 'python -m ensurepip'", kind=FetchError)
    assert left_in(empty_home) == []


@pytest.mark.parametrize(("complaint", "status", "why"), [
    ("WARNING: slow\nERROR: No network\nERROR: Nothing found\n", 1, "(No network)"),
    ("/bin/python: odd things\n\n", 1, "(/bin/python: odd things)"),
    ("", 1, "(no reason given)"),
    ("", 0, "(no reason given)"),
])  # fmt: skip
def test_pip_errors_in_one_sentence(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, complaint: str, status: int, why: str
) -> None:
    shelf()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Process(complaint=complaint, returncode=status))
    words = (f"pip could not fetch fake==1.0 {why}.", "Check the network and pip's index settings, then try again.")
    refused(lambda: locate("fake"), *words, kind=FetchError)


def test_pip_that_does_not_start(shelf: Shelf, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file")

    shelf()
    monkeypatch.setattr(subprocess, "Popen", missing)
    words = ("pip could not be started ([Errno 2] No such file)", "Give the path of a local copy instead.")
    refused(lambda: locate("fake"), *words, kind=FetchError)
    assert left_in(empty_home) == []


def test_progress_while_pip_works(shelf: Shelf, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in the bytes that lie in pip's temporary folder, which is ours."""
    shelf()

    def popen(command: list[str], env: dict[str, str], **_: Any) -> Process:
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "--only-binary", "--no-input"} <= set(command)
        shutil.copy(archive, env["TMPDIR"])
        return Process(subprocess.TimeoutExpired, subprocess.TimeoutExpired, returncode=0)

    monkeypatch.setattr(subprocess, "Popen", popen)
    seen: Seen = []
    assert locate("fake", progress=lambda *step: seen.append(step)).read_bytes() == b"weights"
    size = archive.stat().st_size
    assert seen == [("fetching fake==1.0", done, 3_000_000) for done in (size, size, 3_000_000)]


def test_progress_survives_vanishing_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip removes them between our listing its folder and our looking at what is in it."""
    (tmp_path / "here").write_bytes(b"four")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    scandir = os.scandir

    def removed(path: Any) -> Any:
        if Path(path).name == "folder":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed)
    assert module._bytes_in(tmp_path) == 4


def test_an_interrupt_terminates_pip(shelf: Shelf, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf()
    process = Process(subprocess.TimeoutExpired, KeyboardInterrupt)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    with pytest.raises(KeyboardInterrupt):
        locate("fake")
    assert process.ended
    assert left_in(empty_home) == []


# The hub --------------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef" * 2 + "01234567"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
PARTS: tuple[CheckpointPart, ...] = ("tokenizer", "config", "model")


@pytest.fixture
def cache(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache. The library takes HF_HOME into its constants when it is imported, so those are changed."""
    folder = Path(os.environ["HF_HOME"]) / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be asked of the hub itself: looking into the cache works, everything else is only noted."""
    found: list[Any] = []

    def snapshot(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            return snapshot_download(name, allow_patterns=allow_patterns, local_files_only=True)
        found.append((name, allow_patterns))
        (cache / "fetched").mkdir(parents=True, exist_ok=True)
        if "model*.safetensors" in allow_patterns:
            (cache / "fetched" / "model.safetensors").touch()
        return str(cache / "fetched")

    def one_file(name: str, file: str) -> str:
        found.append((name, file))
        return str(cache / file)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", one_file)
    return found


def lay_out(cache: Path, files: Iterable[str], listed: Iterable[str] | None = None, name: str = "org/name") -> Path:
    """A repository as the hub's cache has it; with the listing that newer clients keep, if one is given."""
    repository = cache / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name in files:
        where = {"weight_map": dict(zip("ab", SHARDS, strict=True))} if name == INDEX else {}
        (folder / name).write_text(json.dumps(where))
    if listed is not None:
        (repository / "trees").mkdir()
        entries = {name: {"size": 1, "blob_id": "0" * 40} for name in listed}
        (repository / "trees" / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": entries}))
    return folder


SNAPSHOTS: list[tuple[tuple[str, ...], set[CheckpointPart]]] = [  # (the files in a snapshot, the parts it can serve)
    ((), set()),
    (("README.md",), set()),
    (("tokenizer.json",), {"tokenizer"}),
    (("config.json", "tokenizer.json"), {"tokenizer", "config"}),
    (("model.safetensors",), {"model"}),
    (("config.json", "tokenizer.json", "model.safetensors"), {"tokenizer", "config", "model"}),
    (("x.gguf",), {"tokenizer", "config", "model"}),
    (("config.json", "pytorch_model.bin"), {"config", "model"}),
    (("config.json", INDEX, *SHARDS), {"config", "model"}),
    (("config.json", INDEX, SHARDS[0]), {"config"}),  # a download that was broken off
    (("config.json", "tokenizer.json", INDEX), {"tokenizer", "config"}),  # a tokenizer fetched on its own
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("files", "parts"), SNAPSHOTS)
@pytest.mark.every_combination
def test_a_cached_snapshot_serves_the_parts_it_holds(
    cache: Path, asked: list[Any], files: tuple[str, ...], parts: set[CheckpointPart], part: CheckpointPart
) -> None:
    folder = lay_out(cache, files)
    assert (locate("org/name", part) == folder) == (part in parts)
    assert bool(asked) == (part not in parts)


@pytest.mark.parametrize("part", PARTS)
def test_a_cached_snapshot_needs_no_other_files(cache: Path, asked: list[Any], part: CheckpointPart) -> None:
    """The client keeps the repository's listing, and calls a snapshot incomplete that lacks what we left out."""
    files = ("config.json", "tokenizer.json", "model.safetensors")
    folder = lay_out(cache, files, listed=(*files, "README.md", "pytorch_model.bin", "onnx/model.onnx"))
    assert locate("org/name", part) == folder
    assert asked == []


def test_only_the_files_of_the_part_are_fetched(asked: list[Any]) -> None:
    for part in PARTS:
        locate("org/name", part)
    small = ["*.json", "*.jinja", "*.txt", "*.model", "*.spm"]
    weights = [*small, *module.WEIGHTS]
    assert asked == [("org/name", small), ("org/name", small), ("org/name", weights)]


@pytest.fixture
def repository(cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of a repository, which is there to be asked; the client's own matching of names decides."""
    from huggingface_hub.utils import filter_repo_objects

    files: dict[str, str] = {}

    def snapshot(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        for file in filter_repo_objects(files, allow_patterns=allow_patterns):
            (cache / "fetched").mkdir(parents=True, exist_ok=True)
            (cache / "fetched" / file).write_text(files[file])
        return str(cache / "fetched")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    return files


OLD = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
OLD_INDEX = json.dumps({"weight_map": dict(zip("ab", OLD, strict=True))})
WORDS = ("config.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.json")


@pytest.mark.parametrize(("weights", "wanted"), [
    ({"model.safetensors": "", "pytorch_model.bin": ""}, {"model.safetensors"}),
    ({INDEX: json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}), **dict.fromkeys(SHARDS, ""),
      "pytorch_model.bin": ""}, {INDEX, *SHARDS}),
    ({"pytorch_model.bin": "", "tf_model.h5": "", "training_args.bin": ""}, {"pytorch_model.bin"}),
    ({"pytorch_model.bin.index.json": OLD_INDEX, **dict.fromkeys(OLD, "")}, {"pytorch_model.bin.index.json", *OLD}),
])  # fmt: skip
def test_pytorch_weights_are_fetched_only_without_safetensors(
    repository: dict[str, str], weights: dict[str, str], wanted: set[str]
) -> None:
    repository.update(weights, **dict.fromkeys((*WORDS, "README.md", "flax_model.msgpack"), "{}"))
    folder = locate("org/name")
    assert {path.name for path in folder.iterdir()} == wanted | set(WORDS)


def test_layers_behind_a_pooling_are_fetched_with_their_weights() -> None:
    from huggingface_hub.utils import filter_repo_objects

    wanted = ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    others = ["onnx/model.safetensors", "openvino/openvino_model.bin", "onnx/model.onnx_data"]
    assert [*filter_repo_objects([*wanted, *others], allow_patterns=module.PATTERNS["model"])] == wanted


def test_a_fetched_index_that_leads_outside(repository: dict[str, str]) -> None:
    repository[INDEX] = json.dumps({"weight_map": {"a": "../../x.safetensors"}})
    refused(lambda: locate("org/name"), "is not a file inside the checkpoint's folder", kind=CheckpointError)


def test_one_file_of_a_hub_repository(cache: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CatalogueEntry("nothing", "none", (Hub("org/name", "x.gguf"),))
    monkeypatch.setitem(CATALOGUE, "fake", entry)  # type: ignore[misc]
    assert local_path("fake") is None
    assert locate("fake") == cache / "x.gguf"
    assert asked == [("org/name", "x.gguf")]
    folder = lay_out(cache, ["x.gguf"])
    assert local_path("fake") == locate("fake") == folder / "x.gguf"
    assert len(asked) == 1


def test_local_path_does_not_ask_the_hub(cache: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "fake", CatalogueEntry("nothing", "none", (Hub("org/name"),)))  # type: ignore[misc]
    assert local_path("fake") is None
    folder = lay_out(cache, ["model.safetensors"])
    assert local_path("fake") == locate("fake") == folder
    assert asked == []


RENAMED = [  # (its short name of old, its full name)
    ("gpt2", "openai-community/gpt2"), ("bert-base-uncased", "google-bert/bert-base-uncased"),
    ("t5-small", "google-t5/t5-small"), ("distilbert-base-uncased", "distilbert/distilbert-base-uncased"),
    ("roberta-base", "FacebookAI/roberta-base"), ("gpt2-medium", "openai-community/gpt2-medium"),
]  # fmt: skip


@pytest.mark.parametrize("cached_first", [True, False])
@pytest.mark.parametrize(("short", "full"), RENAMED)
def test_a_renamed_repository_is_found_under_either_name(
    cache: Path, asked: list[Any], short: str, full: str, cached_first: bool
) -> None:
    folder = lay_out(cache, ["model.safetensors"], name=short if cached_first else full)
    assert [local_path(short), local_path(full), locate(short), locate(full)] == [folder] * 4
    assert set(hub_repositories(short)) == set(hub_repositories(full)) == {short, full}
    assert asked == []


def test_a_renamed_repository_is_fetched_under_its_full_name(asked: list[Any]) -> None:
    for name in ("gpt2-medium", "openai-community/gpt2-medium"):
        locate(name, "config")
    assert [name for name, _ in asked] == ["openai-community/gpt2-medium"] * 2


def test_a_tokenizer_alone_serves_a_catalogue_name(cache: Path, asked: list[Any]) -> None:
    folder = lay_out(cache, ["tokenizer.json"], name="openai-community/gpt2")
    assert locate("gpt2", "tokenizer") == folder
    assert asked == []


def test_hf_home_is_respected(cache: Path) -> None:
    """In a fresh process, as a user has it."""
    folder = lay_out(cache, ["model.safetensors"])
    script = "from glassformer.checkpoint.locate import locate; print(locate('org/name'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder)


@pytest.mark.parametrize("name", ["org/name", "qwen3-0.6b"])
def test_hub_offline(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = (
        "is no folder here and not in the local cache",
        "could not be reached (HF_HUB_OFFLINE is set)",
        "give the path of a local copy",
    )
    refused(lambda: locate(name), *words, kind=FetchError)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert "HF_HUB_OFFLINE" not in str(refused(lambda: locate(name), *words[:1], "Connect and try again", kind=FetchError))


class TransferBroke(Exception):
    """Like those of the HTTP library below the client, which are no OSError and not the client's own."""


ANSWER = SimpleNamespace(headers={}, request=None)
ANSWERS: dict[str, tuple[Exception, type, tuple[str, ...]]] = {
    "gated": (
        errors.GatedRepoError("403", response=ANSWER),
        FetchError,
        ("'org/name' is gated", "accept its terms on the hub and log in"),
    ),
    "not there": (
        errors.RepositoryNotFoundError("404", response=ANSWER),
        ModelNotFound,
        ("the hub has no model 'org/name'", "Check the spelling."),
    ),
    "server error": (errors.HfHubHTTPError("500", response=ANSWER), FetchError, ("'org/name'", "Connect and try again")),
    "broken transfer": (TransferBroke("reset"), FetchError, ("'org/name'", "Connect and try again")),
    "no room": (OSError(28, "No space left"), FetchError, ("'org/name'", "Connect and try again")),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_hub_errors_in_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    error, kind, words = ANSWERS[what]

    def snapshot(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        raise errors.LocalEntryNotFoundError("not here") if local_files_only else error

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    refused(lambda: locate("org/name"), *words, kind=kind)


@pytest.mark.parametrize("name", ["llama3.2-1b", "meta-llama/Llama-3.2-1B-Instruct"])
def test_gated_models_say_so_before_they_fail(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    def snapshot(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        raise errors.LocalEntryNotFoundError("not here") if local_files_only else ANSWERS["gated"][0]

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    refused(lambda: locate(name), "'meta-llama/Llama-3.2-1B-Instruct' is gated", kind=FetchError)
    (said,) = caplog.messages
    assert "accept its terms at https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct, and log in" in said
    caplog.clear()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    refused(lambda: locate(name), "is gated", kind=FetchError)
    assert not caplog.messages


@pytest.mark.parametrize("name", ["org/a--b", "-org/name", "org/name."])
def test_names_that_are_no_hub_id(cache: Path, name: str) -> None:
    refused(lambda: locate(name), f"the hub has no model {name!r}", "Check the spelling.", kind=ModelNotFound)


# Several sources ------------------------------------------------------------------------------------------------


def two_sources(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CatalogueEntry("nothing", "none", (wheel, Hub("org/name", "x.gguf")))
    monkeypatch.setitem(CATALOGUE, "fake", entry)  # type: ignore[misc]


def test_fetch_tries_the_next_source(
    shelf: Shelf, downloads: list[Path], cache: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sources(shelf(sha256="0" * 64), monkeypatch)
    assert locate("fake") == cache / "x.gguf"
    assert len(downloads) == len(asked) == 1


@pytest.mark.parametrize("error", [FetchError("Second."), ModelNotFound("Second.")])
def test_fetch_names_every_sources_error(
    shelf: Shelf, downloads: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    two_sources(shelf(sha256="0" * 64), monkeypatch)
    monkeypatch.setattr(module, "_from_hub", fail)
    refused(lambda: locate("fake"), "'fake' could not be fetched.", "SHA-256", "Second.", kind=FetchError)


def test_a_model_that_comes_with_the_package_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASS_HOME", "/nonexistent")
    assert (locate("g2p") / "model.safetensors").is_file()
    assert local_path("g2p") == locate("g2p") == pull("g2p")
    assert CATALOGUE["g2p"].origin == "this package"
    with pytest.raises(InputError, match="'g2p'"):
        local_cache.cached_items("g2p")


# Progress ---------------------------------------------------------------------------------------------------------


class RecordingBar:
    """What the hub's library would draw."""

    def __init__(self, total: int, desc: str, unit: str, unit_scale: bool) -> None:
        self.n, self.shown = 0, [f"{desc}: 0 of {total}"]
        bars.append(self)

    def update(self, amount: int) -> None:
        self.n += amount
        self.shown.append(str(self.n))

    def close(self) -> None:
        self.shown.append("closed")


bars: list[RecordingBar] = []


def test_what_is_fetched_from_python_shows_how_far_it_is(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(wheel: Any, progress: Any) -> Path:
        for done in (0, 5_000_000, 10_000_000):
            progress("fetching it", done, 10_000_000)
        return empty_home

    bars.clear()
    monkeypatch.setattr("glassformer.ground.progress.import_module", lambda name: SimpleNamespace(tqdm=RecordingBar))
    monkeypatch.setattr(module, "_from_wheel", fetch)
    monkeypatch.setattr(module, "_from_split_file", fetch)
    module.fetch("smollm2")
    assert [bar.shown for bar in bars] == [["fetching it: 0 of 10000000", "0", "5000000", "10000000", "closed"]]
    told: list[int] = []
    module.fetch("smollm2", lambda what, done, total: told.append(done))
    assert told == [0, 5_000_000, 10_000_000]
    assert len(bars) == 1
    assert capsys.readouterr().err == ""


def test_the_hubs_bars_are_reported_instead_of_drawn(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def snapshot(name: str, allow_patterns: list[str], local_files_only: bool = False, tqdm_class: Any = None) -> str:
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        with tqdm_class(total=8, unit="B") as in_bytes, tqdm_class(total=1) as in_files:
            in_bytes.update(3)
            in_bytes.update(5)
            in_files.update(1)
        (cache / "fetched").mkdir(parents=True, exist_ok=True)
        (cache / "fetched" / "model.safetensors").touch()
        return str(cache / "fetched")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    told: list[tuple[str, int, int]] = []
    locate("org/name", progress=lambda *news: told.append(news))
    assert told == [("fetching org/name", 3, 8), ("fetching org/name", 8, 8)]
    assert capsys.readouterr().err == ""
