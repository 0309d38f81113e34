"""A folder of activations: safetensors shards of many texts, and an index.

    index.json              the model, the sites, and for each whole shard how much it holds
    shard-00000.safetensors  under each site's name (rows, …); and the texts themselves:
                            ids, lengths (tokens of each text), text (UTF-8), text_lengths (bytes of each)

Shapes: a site's rows (tokens of all texts, …), or (texts, …) where only each text's last token is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.folder import read_safetensors
from glassformer.ground.errors import CheckpointError, InputError, reason_of, spell
from glassformer.ground.files import write_text
from glassformer.ground.typecheck import matches_type

FORMAT = "glassformer.activations/1"
INDEX = "index.json"
KINDS = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
Kept: TypeAlias = Literal["all", "last"]
StoredDtype: TypeAlias = Literal["float32", "float16"]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shard:
    """What the index says of a shard."""

    texts: int
    tokens: int
    rows: int
    cut: int  # texts that have more tokens than were read
    digest: str  # of all texts up to its last


@dataclass(frozen=True)
class Index:
    """What a folder of activations holds, as far as it is written."""

    model: str
    fingerprint: Mapping[str, Any]
    sites: Shapes  # with the shape of a row
    dtype: StoredDtype
    positions: Kept
    length: int | None  # tokens of a text, at most; None: as many as the context has
    shards: tuple[Shard, ...] = ()
    complete: bool = False

    def write(self, folder: Path) -> None:
        write_text(folder / INDEX, json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n")


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05}.safetensors"


def read_index(folder: Path) -> Index:
    """A folder's index, checked: it may come from anywhere."""
    path = folder / INDEX
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{folder} holds no activations: {INDEX} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({reason_of(error)}). Record the activations again.") from error
    try:
        if data.pop("format") != FORMAT:
            raise ValueError("it is of another format")
        shards = tuple(Shard(**shard) for shard in data.pop("shards"))
        sites = {site: tuple(shape) for site, shape in data.pop("sites").items()}
        index = Index(sites=sites, shards=shards, **data)
        sizes = [size for shape in sites.values() for size in shape]
        counts = [count for shard in shards for count in (shard.texts, shard.tokens, shard.rows, shard.cut)]
        if not all(isinstance(size, int) and 0 <= size < 2**40 for size in (*sizes, *counts)):
            raise ValueError("a size is no number")
        if not (matches_type(index.dtype, StoredDtype) and matches_type(index.positions, Kept)):
            raise ValueError("its dtype or positions are unknown")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not an index of activations ({reason_of(error)}). Record them again.") from error
    return index


@dataclass(frozen=True, eq=False)
class OpenShard:
    """A shard, mapped."""

    arrays: dict[str, npt.NDArray[Any]]
    last_only: bool

    @cached_property
    def token_ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.arrays["lengths"])

    @cached_property
    def text_ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.arrays["text_lengths"])

    def tokens(self, text: int) -> slice:
        end = int(self.token_ends[text])
        return slice(end - int(self.arrays["lengths"][text]), end)

    def rows(self, text: int) -> slice:
        return slice(text, text + 1) if self.last_only else self.tokens(text)


def open_shard(folder: Path, index: Index, number: int) -> OpenShard:
    """A shard whose tensors are as the index says."""
    path, shard = shard_path(folder, number), index.shards[number]
    advice = f"Record the same texts again with {spell('resume')}, which mends it."
    tensors = read_safetensors(path, advice)
    expected: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        site: (np.float16 if index.dtype == "float16" else np.float32, (shard.rows, *shape))
        for site, shape in index.sites.items()
    }
    expected |= {"ids": (np.int32, (shard.tokens,))}
    expected |= dict.fromkeys(("lengths", "text_lengths"), (np.int64, (shard.texts,)))
    for name, (dtype, shape) in expected.items():
        if name not in tensors or (KINDS.get(tensors[name].kind), tensors[name].shape) != (dtype, shape):
            raise CheckpointError(f"{path}: {name!r} is not as {folder}'s index says. {advice}")
    arrays = {
        name: tensor.bytes.view(KINDS[tensor.kind]).reshape(tensor.shape)
        for name, tensor in tensors.items()
        if tensor.kind in KINDS
    }
    lengths, sizes = arrays["lengths"], arrays["text_lengths"]
    right = min(lengths.min(initial=0), sizes.min(initial=0)) >= 0 and lengths.sum() == shard.tokens
    if "text" not in arrays or not right or sizes.sum() != arrays["text"].size:
        raise CheckpointError(f"{path}: its texts do not have the lengths that it says. {advice}")
    return OpenShard(arrays, index.positions == "last")
