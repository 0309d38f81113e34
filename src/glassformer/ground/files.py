"""Files and folders that are written whole or not at all: everything the package writes goes through here.

A file is written beside its target under a hidden name, flushed to the disk and renamed, so the target is at every moment
the old file or the new one, also after a full disk, a kill or a power cut. Each hidden file and folder is locked by the
process that writes it. The system drops the lock when that process ends, in whatever way, so the next write to the same
target can tell what was abandoned, and removes it.

No file system renames several files as one. Files that belong together (config and weights) are therefore first written
into a hidden folder inside their own, which is renamed to a name that says that it is complete. From then on the save
counts: its files are moved up, and a reader that finds some not moved yet, because the writer was killed, moves them
itself (`finish_saves`). One of the files, without which no library reads the folder, is removed before the first is
moved and put in place last, so that other libraries too see the old files, the new ones, or an error.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from glassformer.ground.arguments import checked
from glassformer.ground.errors import CheckpointError, WriteError

try:
    import fcntl
except ImportError:  # Windows, where a folder cannot be locked
    fcntl = None  # type: ignore[assignment]

DAY = 86_400  # seconds; longer than any write, where locks cannot tell what was abandoned
LONGEST_NAME = 180  # bytes of a target's name that fit into a hidden one
PART = ".part"
SAVING, SAVED = ".saving-", ".saved-"  # a folder of files that belong together, being written and complete
FIXES = {
    errno.ENOSPC: "Free some space, or choose another place.",
    errno.EDQUOT: "Free some space, or choose another place.",
    errno.EFBIG: "It is larger than a file may be there: choose another place.",
    errno.ENOENT: "Make the folder first, or choose another place.",
    errno.EISDIR: "Give the name of a file in it.",
    errno.EEXIST: "A folder is needed there: choose another place.",
    errno.ENOTDIR: "Choose another place.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def home() -> Path:
    """Where fetched models, and what is built for them, are kept: GLASS_HOME, else the user's cache folder."""
    if folder := os.environ.get("GLASS_HOME"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "glassformer"


def write_error(path: Path, error: OSError | str) -> WriteError:
    """What could not be written, why, and what to do about it."""
    if isinstance(error, str):
        return WriteError(f"{path} cannot be written ({error}). Choose another place.")
    fix = FIXES.get(error.errno or 0, "Check its permissions, or choose another place.")
    return WriteError(f"{path} cannot be written ({error.strerror or error}). {fix}")


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """A text as a whole file; `mode`: the permissions of a new one."""
    write_bytes(path, text.encode(), mode)


def write_text_in(folder: Path, name: str, text: str) -> None:
    """A text as a file of a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    write_text(folder / name, text)


def write_bytes(path: Path, data: bytes, mode: int | None = None) -> None:
    with atomic_file(path, mode) as part, part.open("r+b") as file:
        file.write(data)


@contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[Path]:
    """A path to write to: an empty file that takes the place of `path` when all went well, and is removed when not."""
    try:
        target = _writable_target(path)
        remove_abandoned(target.parent, f"{_hidden_stem(target.name)}.*{PART}")
        part, descriptor = _locked_file(target, mode)
        try:
            yield part
            part.chmod(stat.S_IMODE(os.fstat(descriptor).st_mode))  # a library may have put a private file in its place
            _sync(part)
            part.replace(target)
            sync_folder(target.parent)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            os.close(descriptor)
    except WriteError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def prepared_target(path: Path | None) -> Iterator[None]:
    """Around long work that ends in a file, in a folder that is made for it; None: in none.

    A place that cannot be written is refused before it begins; and if it ends otherwise, folders that it made are removed.
    """
    made: list[Path] = []
    try:
        if path is not None:
            _prepare_target(path, made)
        yield
    except BaseException:  # an interrupt too
        for folder in made:
            with suppress(OSError):  # not empty, or not made
                folder.rmdir()
        raise


def _prepare_target(path: Path, made: list[Path]) -> None:
    try:
        made += [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        part, descriptor = _locked_file(_writable_target(path), None)
        part.unlink(missing_ok=True)
        os.close(descriptor)
    except WriteError:
        raise
    except ValueError as error:  # a name that no file can have
        raise WriteError(f"{str(path)!r} cannot be written: {error}. Choose another name.") from error
    except OSError as error:
        raise write_error(path, error) from error


def _writable_target(path: Path) -> Path:
    """The file that a path leads to, through links; refused if something else stands there, or it may not be changed."""
    target = Path(os.path.realpath(path))
    try:
        status = target.stat()
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise write_error(path, "it is a device or a pipe, not a file")
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return target


def _hidden_stem(name: str) -> str:
    """How the names of a target's unfinished files begin."""
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f".{name}"


def _locked_file(target: Path, mode: int | None) -> tuple[Path, int]:
    """A new file beside a target, with its permissions, locked as long as the descriptor is open."""
    if len(os.fsencode(target.name)) > 255:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    stem = _hidden_stem(target.name)
    while True:
        part = target.with_name(f"{stem}.{secrets.token_hex(6)}{PART}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(part, flags, 0o666 if mode is None else mode)
        try:
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink:  # else somebody has removed it before it was locked
                with suppress(OSError):
                    part.chmod(stat.S_IMODE(target.stat().st_mode))
                return part, descriptor
        except BaseException:
            part.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)


# Folders --------------------------------------------------------------------------------------------------------


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A locked folder inside another, gone afterwards; those that killed processes have left go before."""
    remove_abandoned(parent, f"{prefix}*")
    folder, descriptor = _locked_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _close(descriptor)


@contextmanager
def atomic_save(folder: Path, key: str, owned: Callable[[str], object]) -> Iterator[Path]:
    """A folder to write files to that belong together; they replace those of `folder` when all went well.

    Args:
        folder: where they go; made if it is not there. Other files in it stay.
        key: the file without which nobody reads the others.
        owned: whether a file of this name would belong to an earlier save, and goes if this save has none of that name.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise write_error(folder, "it is a file, and a folder is needed")
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder, SAVING) as work:
            yield work
            sync_tree(work)
            _write_manifest(work, key, [path.name for path in folder.iterdir() if path.is_file() and owned(path.name)])
            sync_folder(work)
            with _locked(folder):
                work.rename(folder / f"{SAVED}{time.time_ns():020}")
                _move_up(folder)
    except WriteError:
        raise
    except OSError as error:
        raise write_error(folder, error) from error


MANIFEST = "manifest"  # inside a complete folder: the key, then the names of files that go


def _write_manifest(work: Path, key: str, earlier: list[str]) -> None:
    new = {path.name for path in work.iterdir()}
    manifest = work / MANIFEST
    manifest.write_text("\n".join([key, *(name for name in earlier if name not in new)]), "utf-8")
    _sync(manifest)


def finish_saves(folder: Path) -> None:
    """Move up the files of saves that were complete when their process was killed."""
    if not any(folder.glob(f"{SAVED}*")):
        return
    try:
        with _locked(folder):
            _move_up(folder)
    except OSError as error:
        raise WriteError(
            f"{folder}: a save was interrupted, and its files cannot be put in place ({error.strerror or error}). "
            "Make the folder writable and open it again, or save the model once more."
        ) from error


def _move_up(folder: Path) -> None:
    """Put the files of complete saves in their places, oldest save first; the folder is locked."""
    for saved in sorted(folder.glob(f"{SAVED}*")):
        manifest = saved / MANIFEST
        if manifest.exists():  # else all was moved, and only the folder is left
            key, *stale = manifest.read_text("utf-8").split("\n")
            if (saved / key).exists():
                for name in (key, *stale):
                    (folder / Path(name).name).unlink(missing_ok=True)
                sync_folder(folder)
                for path in sorted(saved.iterdir()):
                    if path.name not in (key, MANIFEST):
                        path.replace(folder / path.name)
                sync_folder(folder)
                (saved / key).replace(folder / key)
                sync_folder(folder)
        shutil.rmtree(saved)


# Locks ----------------------------------------------------------------------------------------------------------


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove unfinished files and folders whose process has ended."""
    for path in folder.glob(_escaped(pattern)):
        with suppress(OSError):  # gone, or not ours to remove
            if _is_abandoned(path):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _escaped(pattern: str) -> str:
    """A pattern in which only stars are special: names may hold brackets and question marks."""
    return "".join(f"[{letter}]" if letter in "[?" else letter for letter in pattern)


def _is_abandoned(path: Path) -> bool:
    if fcntl is None:
        return path.stat().st_mtime < time.time() - DAY
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return os.fstat(descriptor).st_mtime < time.time() - DAY
    finally:
        os.close(descriptor)
    return True


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(6)}"
        folder.mkdir()
        if fcntl is None:
            return folder, None
        descriptor = None
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            _lock(descriptor)
            if folder.exists():  # else somebody has removed it before it was locked
                return folder, descriptor
        _close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process moves files up in a folder."""
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            _lock(descriptor)
        yield
    finally:
        _close(descriptor)


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _sync(path: Path) -> None:
    """Have a file's bytes on the disk."""
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Have a file, or all files in a folder, on the disk; whoever may read the folder may read its files.

    Some libraries write through private temporary files, whatever the umask says, and safetensors is one of them.
    """
    if not path.is_dir():
        _sync(path)
        return
    readers = path.stat().st_mode & 0o666
    for inner in path.iterdir():
        if inner.is_file() and not inner.is_symlink():
            inner.chmod(stat.S_IMODE(inner.stat().st_mode) | readers)
        sync_tree(inner)
    sync_folder(path)


def sync_folder(folder: Path) -> None:
    """Have a folder's names on the disk, where the system can."""
    if fcntl is None:
        return
    with suppress(OSError):  # some file systems refuse it
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FETCH_AGAIN = "Fetch or copy the checkpoint again."


def open_regular(path: Path, advice: str = FETCH_AGAIN) -> int:
    """The descriptor of a file that is open for reading; `advice`: what to do when it is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        target = f"it is a link to {path.readlink()}, which is not there" if path.is_symlink() else "the file is missing"
        raise CheckpointError(f"{path}: {target}. {advice}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}. Check the path and its permissions.") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
    raise CheckpointError(f"{path}: is a {kind}, and a file is needed. Give the path of one.")


def read_regular(path: Path) -> bytes:
    """All bytes of a file."""
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            return file.read()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}. Fetch or copy it again.") from error


BLOCK = 1 << 22
SEAL = "crc32"


def crc32_text(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def file_crc32(path: Path) -> str:
    """The checksum of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON data with their checksum."""
    return {**data, SEAL: crc32_text(json.dumps(data).encode())}


def unsealed(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """JSON data without their checksum; None if it does not fit them. Data without one are old, and taken as they are."""
    inner = {name: value for name, value in data.items() if name != SEAL}
    return inner if SEAL not in data or sealed(inner)[SEAL] == data[SEAL] else None


@checked
def upload(
    save: Callable[[str], Any],
    repo_id: str,
    *,
    commit_message: str,
    commit_description: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload what `save` writes into a folder; gives the address of the commit or the pull request.

    The repository is made if need be. The other arguments are those of huggingface_hub.
    """
    from huggingface_hub import HfApi

    hub = HfApi(token=token)
    repository = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder:
        save(folder)
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=commit_message, commit_description=commit_description,
            revision=revision, create_pr=create_pr,
        )  # fmt: skip
    return str(commit)
