"""cl100k_base for tiktoken, offline: our own lasting copy, and copies where tiktoken looks.

tiktoken fetches an encoding's ranks from the network and caches them in $TIKTOKEN_CACHE_DIR, else $DATA_GYM_CACHE_DIR,
else a folder among the temporary files, under the SHA-1 of their address.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from glassformer.checkpoint.locate import local_path
from glassformer.ground.errors import FetchError, WriteError
from glassformer.ground.files import atomic_file, home

NAME = "cl100k_base"
CACHE_KEY = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # its name in tiktoken's cache
SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
CACHE_VARIABLES = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")


def ranks_path() -> Path | None:
    """Our copy of the ranks, or None as long as `glass models pull cl100k_base` has not been run."""
    return local_path(NAME)


def set_tiktoken_cache() -> Path | None:
    """Point this process's tiktoken at a copy of ours, unless the user has set a cache. The copy's path, or None."""
    path = ranks_path()
    if path is None or any(name in os.environ for name in CACHE_VARIABLES):
        return None
    try:
        copy = _copy(path, home() / "tiktoken")
    except FetchError:  # a home that cannot be written to: tiktoken looks where it always did
        return None
    os.environ[CACHE_VARIABLES[0]] = str(copy.parent)
    return copy


def copy_to_tiktoken_cache() -> Path | None:
    """Copy ours to where any process's tiktoken looks. None if we have none, or its caching is turned off."""
    path, folder = ranks_path(), _tiktoken_cache()
    return None if path is None or folder is None else _copy(path, folder)


def _tiktoken_cache() -> Path | None:
    setting = next((os.environ[name] for name in CACHE_VARIABLES if name in os.environ), None)
    if setting is None:
        return Path(tempfile.gettempdir()) / "data-gym-cache"
    return Path(setting) if setting else None  # set to nothing, it turns caching off


def _copy(source: Path, folder: Path) -> Path:
    """A copy that is right already is left alone; another is replaced in one step."""
    target = folder / CACHE_KEY
    try:
        if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SHA256:
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as part:
            shutil.copyfile(source, part)
    except OSError as error:
        cause = error.__cause__ if isinstance(error, WriteError) else error
        raise FetchError(
            f"{folder}: tiktoken's ranks cannot be put there ({getattr(cause, 'strerror', None) or error}). "
            "Set TIKTOKEN_CACHE_DIR to a folder that can be written to."
        ) from error
    return target
