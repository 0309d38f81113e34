"""Activations of many texts in a folder: safetensors shards and an index, mapped so that only what is used is loaded.

    recorded = RecordedActivations("activations")
    recorded[17].text, recorded[17].values("blocks.3.residual")
    for rows in recorded.batches("blocks.3.residual", 1024, seed=0): ...

    index.json              the model, the sites, and for each whole shard how much it holds
    shard-00000.safetensors  under each site's name (rows, …); and the texts themselves:
                            ids, lengths (tokens of each text), text (UTF-8), text_lengths (bytes of each)

Shapes: a site's rows (tokens of all texts, …), or (texts, …) where only each text's last token is kept.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.folder import read_safetensors
from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import CheckpointError, InputError, SiteError, did_you_mean, reason_of, spell
from glassformer.ground.files import write_text
from glassformer.ground.typecheck import matches_type
from glassformer.page.document import Column, Page, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import format_bytes, format_shape, pluralize
from glassformer.see.passes import grouped
from glassformer.see.view import Floats, View

ROWS = 16  # sites that are shown


@dataclass(frozen=True)
class RecordedSite:
    site: str
    shape: tuple[int, ...]  # of a row
    bytes: int


@dataclass(frozen=True)
class ActivationFiles(View):
    """What a folder of activations holds."""

    SCHEMA = "glassformer.activation-files/1"

    model: str
    folder: str
    texts: int
    tokens: int
    rows: int  # of each site
    cut: int  # texts that have more tokens than were read
    dtype: str
    positions: str  # 'all', or of each text the 'last' alone
    shards: int
    complete: bool
    sites: tuple[RecordedSite, ...]

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: activations of {pluralize(self.texts, 'text')}"
        kept = "each token" if self.positions == "all" else "the last token of each text"
        size = format_bytes(sum(site.bytes for site in self.sites))
        lines = [
            f"{pluralize(self.tokens, 'token')}; of {kept} a row in {self.dtype}: {pluralize(self.rows, 'row')}, {size} in "
            f"{pluralize(self.shards, 'shard')} in {self.folder}"
        ]
        if self.cut:
            lines.append(f"{pluralize(self.cut, 'text')} had more tokens than were read")
        if not self.complete:
            lines.append("the recording was stopped before its end: --resume goes on")
        rows = [TableRow((site.site, format_shape(site.shape), format_bytes(site.bytes))) for site in self.sites]
        columns = (Column("site"), Column("shape of a row"), Column("size", "number"))
        table = Table(columns, tuple(rows) if everything else elide_middle(rows, ROWS))
        return Page.titled(title, Paragraph("\n".join(lines)), table)

    def __repr__(self) -> str:
        return f"ActivationFiles({self.texts:,} texts, {self.rows:,} rows of {len(self.sites)} sites)"


FORMAT = "glassformer.activations/1"
INDEX = "index.json"
KINDS = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
Kept: TypeAlias = Literal["all", "last"]
StoredDtype: TypeAlias = Literal["float32", "float16"]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
BUFFER_BYTES = 128_000_000  # of rows that are shuffled together
OPEN_SHARDS = 64  # that stay mapped


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


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05}.safetensors"


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


def open_shard(folder: Path, index: Index, shard_index: int) -> OpenShard:
    """A shard whose tensors are as the index says."""
    path, shard = shard_path(folder, shard_index), index.shards[shard_index]
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


# Reading -------------------------------------------------------------------------------------------------------


@checked_class
class RecordedActivations:
    """The texts of a folder of activations, and what their tokens have at each site."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        self.index: Index = read_index(self.folder)
        self._text_ends = list(accumulate(shard.texts for shard in self.index.shards))
        self.shard = lru_cache(OPEN_SHARDS)(partial(open_shard, self.folder, self.index))

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.index.sites)

    @property
    def tokens(self) -> int:
        """How many tokens the texts have in all."""
        return sum(shard.tokens for shard in self.index.shards)

    @property
    def rows(self) -> int:
        """How many rows each site has: one for each token, or for each text where only the last token was kept."""
        return sum(shard.rows for shard in self.index.shards)

    def __len__(self) -> int:
        """How many texts there are."""
        return self._text_ends[-1] if self._text_ends else 0

    def __getitem__(self, index: int) -> RecordedText:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no text {index} among {len(self)}.")
        index %= len(self)
        shard = bisect_right(self._text_ends, index)
        return RecordedText(self.shard(shard), index - (self._text_ends[shard - 1] if shard else 0))

    def __iter__(self) -> Iterator[RecordedText]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"RecordedActivations({self.index.model}: {len(self):,} texts, {self.rows:,} rows of {len(self.sites)} sites)"

    def batches(self, site: str, size: int = 1024, *, seed: int | None = None) -> RowBatches:
        """A site's rows of all texts as float32 arrays (rows, width), in order or shuffled by a seed; anew at each loop."""
        self.check_site(site)
        if size < 1:
            raise InputError(f"size is {size}; a batch has at least one row.")
        return RowBatches(self, site, size, seed)

    def check_site(self, site: str) -> None:
        """Refuse a site that was not recorded."""
        if site not in self.index.sites:
            raise SiteError(
                f"{self.folder} has no {site!r}.{did_you_mean(site, self.sites)} It has: {', '.join(self.sites)}."
            )

    def summary(self) -> ActivationFiles:
        """What the folder holds."""
        index = self.index
        size = np.dtype(index.dtype).itemsize * self.rows
        sites = tuple(RecordedSite(site, shape, size * math.prod(shape)) for site, shape in index.sites.items())
        cut = sum(shard.cut for shard in index.shards)
        return ActivationFiles(
            index.model, str(self.folder), len(self), self.tokens, self.rows, cut, index.dtype, index.positions,
            len(index.shards), index.complete, sites,
        )  # fmt: skip


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class RecordedText:
    """One of the texts."""

    shard: OpenShard
    number: int  # in its shard

    @property
    def text(self) -> str:
        end = int(self.shard.text_ends[self.number])
        data = self.shard.arrays["text"][end - int(self.shard.arrays["text_lengths"][self.number]) : end]
        return data.tobytes().decode("utf-8", "surrogatepass")

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.shard.arrays["ids"][self.shard.tokens(self.number)].tolist())

    def values(self, site: str) -> Floats:
        """What its tokens have at a site, (tokens, …); of the last token alone, where no more was kept."""
        if site not in self.shard.arrays:
            raise SiteError(f"there is no {site!r} here.{did_you_mean(site, self.shard.arrays)}")
        values: Floats = self.shard.arrays[site][self.shard.rows(self.number)].astype(np.float32)
        return values

    def __repr__(self) -> str:
        return f"RecordedText({self.text[:60]!r})"


@dataclass(frozen=True)
class RowBatches:
    """A site's rows, batch after batch; each loop begins anew.

    Shuffling takes as many shards at a time as fit into memory, in an order that the seed draws, and shuffles their rows.
    """

    recorded: RecordedActivations
    site: str
    size: int
    seed: int | None = None

    def __len__(self) -> int:
        return -(-self.recorded.rows // self.size)

    def __iter__(self) -> Iterator[Floats]:
        width = math.prod(self.recorded.index.sites[self.site])
        left: Floats = np.empty((0, width), np.float32)
        for rows in self._parts(width):
            rows = np.concatenate((left, rows)) if len(left) else rows
            whole = len(rows) // self.size * self.size
            yield from (rows[start : start + self.size] for start in range(0, whole, self.size))
            left = rows[whole:].copy()
        if len(left):
            yield left

    def _parts(self, width: int) -> Iterator[Floats]:
        """Rows of several shards at a time."""
        shards = self.recorded.index.shards
        random = None if self.seed is None else np.random.default_rng(self.seed)
        order = list(range(len(shards))) if random is None else random.permutation(len(shards)).tolist()
        for group in grouped(order, lambda index: shards[index].rows * width * 4, BUFFER_BYTES):
            parts = [self.recorded.shard(index).arrays[self.site] for index in group]
            joined = np.concatenate([np.asarray(part, np.float32).reshape(len(part), -1) for part in parts])
            yield joined if random is None else joined[random.permutation(len(joined))]
