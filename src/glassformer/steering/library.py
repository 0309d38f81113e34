"""Where a name of a steering vector, of a dictionary of features or of a tuned lens leads.

On one's own machine a name may be a path, or stand in GLASS_HOME/steering or GLASS_HOME/features. A server's library has the
folders that its operator named, and no more: a name is compared with what lies there, and never becomes a path. Both have
what comes with the package to see inside a model, which is found by its weights; a file of the same name goes before it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from glassformer.checkpoint.locate import SHIPPED_MODELS
from glassformer.features.dictionary import FeatureDictionary
from glassformer.features.files import is_dictionary, read_dictionary
from glassformer.ground.errors import CheckpointError, GlassError, InputError, did_you_mean
from glassformer.ground.files import home
from glassformer.steering.vector import SUFFIXES, SteeringVector, read_vector

LENS_SUFFIX = ".safetensors"
SIGHT, SHIPPED_LENS, SHIPPED_FEATURES = "sight.json", "lens.safetensors", "features"  # in a folder of shipped_models/
T = TypeVar("T")
log = logging.getLogger("glassformer")


@dataclass(frozen=True)
class Library:
    """Steering vectors, dictionaries of features and tuned lenses, by name."""

    steering: Path | None = None  # a folder of .safetensors and .gguf files
    features: Path | None = None  # a folder of dictionaries, each a folder or a file
    paths: bool = False  # whether a name may also be a path
    lenses: Path | None = None  # a folder of .safetensors files
    shipped: Path | None = None  # what comes with the package for one model: a lens, and a folder of dictionaries

    def vectors(self) -> dict[str, Path]:
        """The steering vectors by name."""
        return {path.stem: path for path in _entries(self.steering) if path.suffix in SUFFIXES and path.is_file()}

    def dictionaries(self) -> dict[str, Path]:
        """The dictionaries of features by name."""
        shipped = None if self.shipped is None else self.shipped / SHIPPED_FEATURES
        paths = [path for folder in (shipped, self.features) for path in _entries(folder) if is_dictionary(path)]
        return {path.stem if path.is_file() else path.name: path for path in paths}

    @property
    def shipped_lens(self) -> Path | None:
        """The tuned lens that comes with the package."""
        return None if self.shipped is None else self.shipped / SHIPPED_LENS

    @property
    def shipped_dictionary(self) -> str | None:
        """The name of the dictionary that is read where none is named."""
        return None if self.shipped is None else str(_facts(self.shipped)["default_dictionary"])

    def tuned_lenses(self) -> dict[str, Path]:
        """The tuned lenses by name."""
        return {path.stem: path for path in _entries(self.lenses) if path.suffix == LENS_SUFFIX and path.is_file()}

    def vector(self, name: str) -> SteeringVector:
        return self._open(name, self.vectors, _cached_vector, "steering vector", SUFFIXES)

    def dictionary(self, name: str, site: str | None = None, site_out: str | None = None) -> FeatureDictionary:
        """A dictionary; `site`, `site_out`: where it is attached, if its files do not say."""
        read = partial(_cached_dictionary, site=site, site_out=site_out)
        return self._open(name, self.dictionaries, read, "dictionary of features", ())

    def tuned_lens(self, name: str, read: Callable[[Path], T]) -> T:
        """A tuned lens, which `read` opens for its model."""
        return self._open(name, self.tuned_lenses, lambda path, changed, size: read(path), "tuned lens", (LENS_SUFFIX,))

    def _open(
        self, name: str, known: Callable[[], dict[str, Path]], read: Callable[[Path, int, int], T], what: str,
        suffixes: tuple[str, ...],
    ) -> T:  # fmt: skip
        named = known()
        path = named.get(name)
        if path is None and self.paths:
            candidates = (Path(name), *(Path(name + suffix) for suffix in suffixes))
            path = next((candidate for candidate in candidates if candidate.exists()), None)
        if path is None:
            there = f"There are: {', '.join(sorted(named))}." if named else "There is none here."
            hint = did_you_mean(name, named)
            raise InputError(f"there is no {what} {name!r}.{hint} {'Give its path.' if self.paths else there}")
        try:
            status = last_changed(path)
            return read(path.resolve(), status.st_mtime_ns, status.st_size)
        except (GlassError, OSError) as error:
            if self.paths:
                raise
            log.warning(f"the {what} {name} cannot be opened: {error}")
            raise CheckpointError(f"the {what} {name!r} cannot be opened; the server's log says why.") from error


def local_library() -> Library:
    """The library of one's own machine."""
    return Library(home() / "steering", home() / "features", paths=True)


def shipped_sight(sizes: tuple[int, int], digest: Callable[[], str]) -> Path | None:
    """The folder of what comes with the package for these weights; their digest is asked for where width and depth agree."""
    made = (folder for folder in _sights() if _facts(folder)["sizes"] == [*sizes])
    return next((folder for folder in made if _facts(folder)["weights"] == digest()), None)


@lru_cache(maxsize=1)
def _sights() -> tuple[Path, ...]:
    return tuple(path.parent for path in sorted(SHIPPED_MODELS.glob(f"*/{SIGHT}")))


@lru_cache(maxsize=8)
def _facts(folder: Path) -> Mapping[str, Any]:
    """What is measured and known of what comes with the package."""
    facts: Mapping[str, Any] = json.loads((folder / SIGHT).read_text("utf-8"))
    return facts


def last_changed(path: Path) -> os.stat_result:
    """The status of a file, or of what was last changed in a folder."""
    parts = [entry.stat() for entry in os.scandir(path)] if path.is_dir() else []
    return max((path.stat(), *parts), key=lambda status: status.st_mtime_ns)


def _entries(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return []


@lru_cache(maxsize=64)
def _cached_vector(path: Path, changed: int, size: int) -> SteeringVector:
    """A vector for as long as its file stays as it is."""
    return read_vector(path)


@lru_cache(maxsize=4)
def _cached_dictionary(path: Path, changed: int, size: int, site: str | None, site_out: str | None) -> FeatureDictionary:
    return read_dictionary(path, site, site_out)
