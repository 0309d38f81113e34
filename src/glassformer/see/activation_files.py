"""Activations of many texts, written to a folder (`recorded_activations.py`) shard by shard.

A shard is written whole or not at all, and counts once the index names it. Which texts a shard has, and how they are
read, follows from its first text alone; so a recording that was killed goes on after its last whole shard, and ends with the
files of an unbroken one, byte for byte. A shard that was damaged since is recorded again on the way.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import CheckpointError, InputError, SettingError, WriteError, spell
from glassformer.ground.files import write_error
from glassformer.ground.ownership import try_lock
from glassformer.ground.progress import Progress
from glassformer.see.protocols import ModelLike
from glassformer.see.recorded_activations import INDEX, Index, Kept, Shard, StoredDtype, open_shard, read_index, shard_path
from glassformer.see.tensor_files import differences, model_fingerprint, save_tensors
from glassformer.see.text_batches import EncodedText, encode_texts, read_texts, token_sites

LOCK = ".lock"
SHARD_BYTES = 64_000_000  # of activations, about
SHARD_TEXTS = 4096  # at the most


def write_activations(
    model: ModelLike,
    texts: Iterable[str],
    patterns: Sequence[str],
    folder: Path,
    *,
    length: int | None = None,
    dtype: StoredDtype = "float32",
    positions: Kept = "all",
    resume: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Write what the tokens of texts have at some sites, shard by shard; returns the complete index."""
    for name, value, known in (("dtype", dtype, StoredDtype), ("positions", positions, Kept)):
        if value not in get_args(known):
            raise SettingError(f"{name} is {value!r}; it must be one of {', '.join(get_args(known))}.")
    sites = token_sites(model, patterns, slots=True)
    begun = Index(model.name, model_fingerprint(model), sites, dtype, positions, length)
    with _locked_folder(folder):
        index = _resumed(folder, begun, resume)
        return _Writer(model, folder, index, texts, progress).write()


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """A folder that no other process writes to; made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except ValueError as error:  # a name that no folder can have
        raise InputError(f"{str(folder)!r} cannot be made: {error}.") from error
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        with (folder / LOCK).open("ab") as file:
            if not try_lock(file):
                raise WriteError(f"{folder} is being written by another process. Wait for it, or choose another folder.")
            yield
    except WriteError:
        raise
    except OSError as error:
        raise write_error(folder, error) from error


def _resumed(folder: Path, begun: Index, resume: bool) -> Index:
    """The index to go on from; refused where something else was begun in the folder."""
    if not (folder / INDEX).exists():
        begun.write(folder)
        return begun
    if not resume:
        raise InputError(f"{folder} holds activations already. Go on with {spell('resume')}, or choose another folder.")
    index = read_index(folder)
    then, now = (
        {**one.fingerprint, "sites": list(one.sites), "dtype": one.dtype, "positions": one.positions, "length": one.length}
        for one in (index, begun)
    )
    if changes := differences(then, now):
        raise InputError(
            f"{folder} was begun otherwise: {'; '.join(changes)}. Go on as it was begun, or choose another folder."
        )
    return index


class _Writer:
    """One run over the texts, from the first that is in no whole shard."""

    def __init__(
        self, model: ModelLike, folder: Path, index: Index, texts: Iterable[str], progress: Progress | None
    ) -> None:
        self.model = model
        self.folder = folder
        self.index = index
        self.total = len(texts) if isinstance(texts, Sized) else None
        self.texts = iter(texts)
        self.progress = progress
        self.digest = hashlib.sha256()
        self.done = 0  # texts that are in whole shards
        self.row_bytes = sum(math.prod(shape) for shape in index.sites.values()) * np.dtype(index.dtype).itemsize

    def write(self) -> Index:
        self._pass_recorded_shards()
        encoded = encode_texts(self.model, self.texts, self.index.length, self.done + 1)
        while texts := self._next_texts(encoded):
            if self.index.complete:
                raise InputError(
                    f"{self.folder} was recorded from fewer texts. Give the same ones, or choose another folder."
                )
            self._write_shard(texts)
        if self.done == 0:
            raise InputError("there are no texts to read. Give at least one.")
        if not self.index.complete:
            self._replace_index(complete=True)
        return self.index

    def _pass_recorded_shards(self) -> None:
        """Leave the texts of the index's shards out, if they are the same ones; but record a damaged shard again."""
        for index, shard in enumerate(self.index.shards):
            texts = list(islice(self.texts, shard.texts))
            before = self.done
            for text in texts:
                self._count(text)
            if self.digest.hexdigest() != shard.digest:
                raise InputError(
                    f"{self.folder} was begun with other texts than these. Give the same ones, or choose another folder."
                )
            try:
                open_shard(self.folder, self.index, index)
            except CheckpointError:
                self._write_arrays(index, list(encode_texts(self.model, texts, self.index.length, before + 1)), before)

    def _next_texts(self, encoded: Iterator[EncodedText]) -> list[EncodedText]:
        """The texts of the next shard."""
        texts: list[EncodedText] = []
        rows = 0
        while rows * self.row_bytes < SHARD_BYTES and len(texts) < SHARD_TEXTS:
            text = next(encoded, None)
            if text is None:
                break
            texts.append(text)
            rows += self._row_count(text)
        return texts

    def _row_count(self, text: EncodedText) -> int:
        return 1 if self.index.positions == "last" else len(text.ids)

    def _write_shard(self, texts: Sequence[EncodedText]) -> None:
        """Write the next shard, and name it in the index."""
        tokens, rows = self._write_arrays(len(self.index.shards), texts, self.done)
        for text in texts:
            self._count(text.text)
        shard = Shard(len(texts), tokens, rows, sum(text.cut for text in texts), self.digest.hexdigest())
        self._replace_index(shards=(*self.index.shards, shard))

    def _write_arrays(self, shard: int, texts: Sequence[EncodedText], before: int) -> tuple[int, int]:
        """Write the file of a shard with `before` texts before it; returns how many tokens and rows it has."""
        counts = [self._row_count(text) for text in texts]
        offsets = [0, *np.cumsum(counts).tolist()]
        arrays: dict[str, npt.NDArray[Any]] = {
            site: np.zeros((offsets[-1], *shape), self.index.dtype) for site, shape in self.index.sites.items()
        }
        for done, part in enumerate(read_texts(self.model, [text.ids for text in texts], self.index.sites), 1):
            for site, values in part.values.items():
                self._place(
                    arrays[site], site, offsets[part.text_index], part.start, len(texts[part.text_index].ids), values
                )
            if self.progress is not None and self.total is not None:
                self.progress(before + min(done, len(texts)), self.total)
        stored = [text.text.encode("utf-8", "surrogatepass") for text in texts]
        arrays["ids"] = np.concatenate([np.array(text.ids, np.int32) for text in texts])
        arrays["lengths"] = np.array([len(text.ids) for text in texts], np.int64)
        arrays["text"] = np.frombuffer(b"".join(stored), np.uint8)
        arrays["text_lengths"] = np.array(list(map(len, stored)), np.int64)
        save_tensors(shard_path(self.folder, shard), arrays)
        return len(arrays["ids"]), offsets[-1]

    def _place(
        self, array: npt.NDArray[Any], site: str, offset: int, start: int, length: int, values: npt.NDArray[Any]
    ) -> None:
        """Put some tokens' values in their rows."""
        if self.index.positions == "last":
            if start + len(values) < length:
                return
            values, start = values[-1:], 0
        rows = array[offset + start : offset + start + len(values)]
        with np.errstate(over="ignore"):
            rows[...] = values
        if self.index.dtype == "float16" and not np.isfinite(rows).all() and np.isfinite(values).all():
            raise InputError(
                f"{site} has values up to {np.abs(values).max():.0f}, more than float16 holds. Record it in float32."
            )

    def _count(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.digest.update(len(data).to_bytes(8, "little") + data)
        self.done += 1

    def _replace_index(self, **changes: Any) -> None:
        self.index = replace(self.index, **changes)
        self.index.write(self.folder)
