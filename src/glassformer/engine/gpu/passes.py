"""Passes of the GPU engine: the numbers of some tokens of some rows, laid out in one piece for one copy to the device.

Shapes: buffers (tokens, width); logits (scored positions, vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.engine import checks
from glassformer.engine.gpu.block_pool import PADDING
from glassformer.engine.gpu.kernels.tensors import PassTensors
from glassformer.engine.gpu.kv_pool import PageList
from glassformer.engine.paged_rows import PAGE
from glassformer.engine.program import Program
from glassformer.engine.program_pass import FeedChunk, ProgramPass
from glassformer.ground.candidates import Candidates, top
from glassformer.ground.errors import ExecutorError

Numbers = npt.NDArray[np.int32]
Part = TypeVar("Part", Numbers, Tensor)
MOST_CANDIDATES = 64  # that are found on the device
SHARED_ROWS = 256  # at most as many rows of logits are copied to the host at once, for all feeds of a pass


@dataclass(frozen=True)
class PassLayout:
    """How many numbers a pass has of each sort; they lie one after the other."""

    tokens: int
    feeds: int
    pages: int  # of the longest row
    scored: int
    source_pages: int = 0  # of the longest source; 0: no sources

    @cached_property
    def _fields(self) -> dict[str, tuple[int, ...]]:
        by_token = dict.fromkeys(("ids", "positions", "slots", "feed_of_token"), (self.tokens,))
        by_feed = dict.fromkeys(
            ("starts", "ends", "first_tokens", "token_counts", "source_lengths", "states"), (self.feeds,)
        )
        tables = {"page_table": (self.feeds, self.pages), "source_page_table": (self.feeds, self.source_pages)}
        return {**by_token, **by_feed, **tables, "scored": (self.scored,), "step": (self.feeds,)}

    @cached_property
    def _places(self) -> list[tuple[str, int, int, tuple[int, ...]]]:
        """Where each sort of numbers begins and ends."""
        sizes = [math.prod(shape) for shape in self._fields.values()]
        fields = zip(self._fields.items(), sizes, accumulate(sizes), strict=True)
        return [(name, end - size, end, shape) for (name, shape), size, end in fields]

    @property
    def size(self) -> int:
        return self._places[-1][2]

    def views(self, numbers: Part) -> dict[str, Part]:
        """The parts of an array or a tensor of `size` numbers."""
        return {name: numbers[begin:end].reshape(shape) for name, begin, end, shape in self._places}

    def tensors(self, numbers: Tensor) -> tuple[PassTensors, Tensor]:
        """The numbers on the device, and those of the scored tokens."""
        views = self.views(numbers)
        scored = views.pop("scored")
        del views["step"]
        if not self.source_pages:
            del views["source_lengths"], views["source_page_table"]
        return PassTensors(**views), scored


class PassInput(NamedTuple):
    """What a pass is over."""

    chunks: Sequence[FeedChunk]
    counts: Sequence[int]  # how many tokens of each chunk are scored
    sources: Sequence[PageList | None]  # the keys and values of each chunk's source

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def scored(self) -> int:
        return sum(self.counts)

    @property
    def most_keys(self) -> tuple[int, int]:
        """The keys of the longest row after its feed, and those of the longest source."""
        return (
            max(chunk.start + len(chunk.feed.ids) for chunk in self.chunks),
            max(len(chunk.row.source) for chunk in self.chunks),
        )


def fill(numbers: Numbers, layout: PassLayout, fed: PassInput) -> None:
    """Write the numbers of a pass. A layout with room for more is padded: with feeds of a token, or with one feed."""
    numbers.fill(PADDING)
    chunks = fed.chunks
    views = layout.views(numbers)
    counts = np.array([chunk.count for chunk in chunks])
    scored_counts = np.array(fed.counts)
    ends = counts.cumsum()
    first_slots = np.array([chunk.start + chunk.offset for chunk in chunks])
    ids = chain.from_iterable(chunk.feed.ids[chunk.offset : chunk.offset + chunk.count] for chunk in chunks)
    slots = _ranges(first_slots, counts)
    values = {
        "ids": np.fromiter(ids, np.int32, ends[-1]), "slots": slots, "positions": slots,
        "feed_of_token": np.repeat(np.arange(len(chunks)), counts), "starts": [chunk.start for chunk in chunks],
        "ends": [chunk.start + len(chunk.feed.ids) for chunk in chunks], "first_tokens": ends - counts,
        "token_counts": counts, "scored": _ranges(ends - scored_counts, scored_counts),
    }  # fmt: skip
    for name, part in values.items():
        views[name][: len(part)] = part
    for index, chunk in enumerate(chunks):
        pages = chunk.row.pages.pages[: layout.pages]  # a row that reads something again has more
        views["page_table"][index, : len(pages)] = pages
        if chunk.row.state is not None:
            views["states"][index] = chunk.row.state.memory.place
    if layout.source_pages:
        views["source_lengths"][: len(chunks)] = [len(chunk.row.source) for chunk in chunks]
        for index, source in enumerate(fed.sources):
            if source is not None:
                views["source_page_table"][index, : len(source.pages)] = source.pages
    _pad(views, fed.tokens, len(chunks), fed.scored)


def _ranges(firsts: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`counts` numbers from each of the `firsts` on, one range after another."""
    ends = counts.cumsum()
    numbers: npt.NDArray[Any] = np.arange(ends[-1]) + np.repeat(firsts - (ends - counts), counts)
    return numbers


def _pad(views: dict[str, Numbers], tokens: int, feeds: int, scored: int) -> None:
    """Feeds after the first `feeds`, with the rest of the tokens: one each, or all in one."""
    padding = np.arange(tokens, len(views["ids"]))
    rest = np.arange(feeds, len(views["starts"]))
    if not rest.size:
        return
    each = 1 if rest.size == padding.size else padding.size
    views["feed_of_token"][tokens:] = np.repeat(rest, each)
    views["first_tokens"][feeds:] = tokens + each * np.arange(rest.size)
    views["token_counts"][feeds:] = each
    views["ends"][feeds:] = views["source_lengths"][feeds:] = 1
    views["scored"][scored:] = padding[: len(views["scored"]) - scored]


def tree_tensors(chunks: Sequence[FeedChunk], tensors: PassTensors, device: torch.device) -> PassTensors:
    """A pass's tensors with its trees: who sees whom, and where each token stands."""
    trees = [chunk.tree_mask() for chunk in chunks]
    tokens, width = sum(len(mask) for mask, _ in trees), max(len(mask) for mask, _ in trees)
    masks, by_feed = np.zeros((tokens, width), np.uint8), np.zeros((len(trees), width), np.int32)
    positions, token = np.empty(tokens, np.int32), 0
    for index, (mask, depths) in enumerate(trees):
        rows = slice(token, token + len(mask))
        masks[rows, : len(mask)], positions[rows], by_feed[index, : len(mask)] = mask, depths, depths
        token += len(mask)
    on_device = (torch.from_numpy(numbers).to(device) for numbers in (positions, masks, by_feed))
    names = ("positions", "tree_mask", "tree_positions")
    return replace(tensors, **dict(zip(names, on_device, strict=True)))


class DeviceRope(NamedTuple):
    frequencies: Tensor | None
    scale: float = 1.0  # that cosines and sines are multiplied by
    interleaved: bool = False


@dataclass
class PassValues(ProgramPass):
    """The values of a pass on the device."""

    program: Program
    chunks: Sequence[FeedChunk]
    buffers: list[Tensor]

    def buffer(self, index: int) -> Tensor:
        return self.buffers[index]

    def state(self, chunk: FeedChunk) -> Tensor:
        values: Tensor = super().state(chunk).values
        return values


@dataclass
class DevicePass(PassValues):
    """A pass on the device, as the steps of its program see it."""

    kernels: Any  # the launchers of `engine/gpu/kernels`, or what stands in for them
    tensors: PassTensors
    scored: Tensor | None  # the numbers of the scored tokens; None: all are scored
    pool: Tensor
    source_pool: Tensor
    states: Tensor  # of all rows, and of padding
    ropes: Sequence[DeviceRope]
    max_keys: int  # no row has more, at its end
    max_source: int
    max_tokens: int  # no feed has more in this pass
    prompt: bool  # many tokens of each feed: with the kernels for them

    @property
    def pattern_keys(self) -> int:
        """The columns of a head in a pattern's buffer."""
        return max(self.max_keys, self.max_source)


def new_buffers(
    program: Program, neighbours: Sequence[Sequence[int]], tokens: int, scored: int, keys: int, device: torch.device
) -> list[Tensor]:  # fmt: skip
    """`neighbours`: buffers that lie side by side in a larger one; those come after the program's own."""
    widths = [shape.width(keys) for shape in program.buffers]
    larger = [torch.empty(tokens, sum(widths[index] for index in group), device=device) for group in neighbours]
    places: dict[int, Tensor] = {}
    for group, whole in zip(neighbours, larger, strict=True):
        places |= zip(group, torch.split(whole, [widths[index] for index in group], dim=1), strict=True)
    for index, width in enumerate(widths):
        if index not in places:
            places[index] = torch.empty(scored if index == program.scores else tokens, width, device=device)
    return [*(places[index] for index in range(len(widths))), *larger]


def rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step


def page_count(tokens: int) -> int:
    return -(-tokens // PAGE)


def to_host(values: Tensor) -> npt.NDArray[Any]:
    """A tensor's values in memory of the host."""
    (host,) = HostCopies([values]).wait()
    return host


class HostCopies:
    """Several tensors' values on their way to the host; from a GPU into pinned memory, which is several times as fast."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        on_gpu = tensors[0].is_cuda
        self._copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._arrived: Any = None
        if on_gpu:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[npt.NDArray[Any]]:
        """The values, when what was queued before the copies has run."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [copy.numpy() for copy in self._copies]


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Numbers of the host on the device, without waiting for what is queued there."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class LogitBatch:
    """The logits of all feeds of a pass on the device; what goes to the host goes there once for all of them."""

    def __init__(self, logits: Tensor, kernels: Any) -> None:
        self.logits = logits  # (scored positions, vocabulary)
        self.kernels = kernels
        self._top: dict[int, tuple[Any, Any, Any]] = {}

    @cached_property
    def _host(self) -> npt.NDArray[np.float32]:
        return to_host(self.logits)

    def host(self, row: int) -> npt.NDArray[np.float32]:
        shared = len(self.logits) <= SHARED_ROWS
        logits: npt.NDArray[np.float32] = self._host[row] if shared else to_host(self.logits[row])
        return logits

    def top(self, k: int, row: int) -> Candidates:
        """A row's best candidates: few are found on the device, for all rows at once, when first asked for."""
        if not 0 < k <= min(MOST_CANDIDATES, self.logits.shape[1]):
            return top(self.host(row), k)
        if len(self.logits) > SHARED_ROWS:
            return Candidates(*(part[0] for part in self._candidates(self.logits[row : row + 1], k)))
        if k not in self._top:
            self._top[k] = self._candidates(self.logits, k)
        return Candidates(*(part[row] for part in self._top[k]))

    def _candidates(self, logits: Tensor, k: int) -> tuple[Any, Any, Any]:
        """The best ids of each row, their logits and probabilities; of equal ones, the first."""
        rows, device = len(logits), logits.device
        out = torch.empty(rows, 2 * k + 3, device=device)  # in one piece, for one copy to the host
        ids = torch.empty(rows, k, dtype=torch.int32, device=device)
        sums = torch.empty(rows, 3, device=device)
        values = torch.empty(rows, k, device=device)
        self.kernels.top_scores(logits, values, ids, sums)
        torch.cat((values, ids.view(torch.float32), sums), dim=1, out=out)
        host = to_host(out)
        leading = host[:, :k]
        probabilities = np.exp(leading - leading[:, :1]) / host[:, 2 * k, None]
        return np.ascontiguousarray(host[:, k : 2 * k]).view(np.int32).astype(np.int64), leading, probabilities


class GpuLogits:
    """One feed's part of a pass's logits."""

    def __init__(self, batch: LogitBatch, first: int, count: int, sites: dict[str, Any]) -> None:
        self._batch, self._first, self._count = batch, first, count
        self.sites = sites

    @property
    def values(self) -> Tensor:
        return self._batch.logits[self._first : self._first + self._count]

    def with_values(self, values: Tensor, sites: dict[str, Any]) -> GpuLogits:
        return GpuLogits(LogitBatch(values, self._batch.kernels), 0, len(values), sites)

    def _row(self, index: int) -> int:
        if not self._count:
            raise ExecutorError(checks.NOT_SCORED)
        return self._first + range(self._count)[index]

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        return self._batch.host(self._row(index))

    def top(self, k: int, index: int = -1) -> Candidates:
        return self._batch.top(k, self._row(index))
