"""Passes that are captured once and replayed: CUDA graphs, of one token a row, or of one row's prompt.

A graph has its numbers (ids, positions, pages) at fixed addresses, filled by one copy before each replay; rows and tokens
are padded to the next size that is captured, and what padding computes goes nowhere. Without CUDA a replay runs the same
pass again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from glassformer.engine.gpu.block_pool import PADDING
from glassformer.engine.gpu.kernels.tensors import CHUNK
from glassformer.engine.gpu.passes import Numbers, PassLayout, page_count

Result = TypeVar("Result")
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # rows
MAX_GRAPHS = 96  # that are kept; each has the memory of its scores and of the sites that it is read at


def padded_size(rows: int) -> int | None:
    """The next size that is captured; None: too many rows."""
    return next((size for size in SIZES if size >= rows), None)


def padded_prompt(tokens: int) -> int:
    """The next length of a prompt that is captured: at most an eighth longer, from 512 tokens on."""
    step = max(64, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


def power_of_two(number: int, least: int) -> int:
    """The least power of two from `number` and `least` on."""
    return max(least, 1 << (number - 1).bit_length())


class CapturedShape(NamedTuple):
    """What a captured pass is for."""

    tokens: int
    feeds: int
    scored: int
    max_keys: int  # powers of two, so that a row grows for a while before the next one is captured
    max_source: int
    prompt: bool
    ahead: Hashable  # how each row's next token is chosen; None: by the host

    @classmethod
    def of(
        cls, tokens: int, feeds: int, scored: int, keys: int, source: int, *, prompt: bool = False, ahead: Hashable = None
    ) -> CapturedShape:
        max_source = power_of_two(source, CHUNK) if source else 0
        return cls(tokens, feeds, scored, power_of_two(keys, CHUNK), max_source, prompt, ahead)

    @property
    def layout(self) -> PassLayout:
        return _layout(self)


@cache
def _layout(shape: CapturedShape) -> PassLayout:
    return PassLayout(shape.tokens, shape.feeds, page_count(shape.max_keys), shape.scored, page_count(shape.max_source))


class PassNumbers:
    """The numbers of a pass at a fixed address of the device, and where they are written on the host."""

    def __init__(self, layout: PassLayout, device: torch.device) -> None:
        self.layout = layout
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(layout.size, dtype=torch.int32, pin_memory=on_gpu)
        self.host: Numbers = self._host.numpy()
        self.device = torch.zeros(layout.size, dtype=torch.int32, device=device)
        self._copied: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def ready(self) -> Numbers:
        """The host's numbers, to be written: the copy of the last ones has ended."""
        if self._copied is not None:
            self._copied.synchronize()
        return self.host

    def send(self) -> None:
        self.device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def capture(run: Callable[[], Result], pool: Any = None) -> tuple[Any, Result]:
    """A CUDA graph of what a function launches, and what it returned; the function is run once before.

    None in place of the graph where there is no memory for it.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = run()  # compiles the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
            return graph, run()
    except torch.OutOfMemoryError:
        return None, result


class CapturedPass:
    """A pass that can be run again and again over numbers at a fixed address."""

    def __init__(self, numbers: PassNumbers, run: Callable[[Tensor], list[Tensor | None]], pool: Any) -> None:
        """`run`: the pass over the device's numbers; it returns the buffers that are read afterwards, None for others."""
        self.numbers = numbers
        self._run = run
        self._graph: Any = None
        if numbers.device.is_cuda:
            self._graph, self._outputs = capture(lambda: run(numbers.device), pool)

    def __call__(self) -> list[Tensor | None]:
        """Run it; what it returns holds until the next replay of any."""
        if self._graph is None:
            return self._run(self.numbers.device)
        self._graph.replay()
        return self._outputs


class Replays:
    """The captured passes of one executor, by what they are for; the least recently used are dropped."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._replays: dict[Any, CapturedPass] = {}
        self._seen: dict[Any, None] = {}  # keys that were asked about
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._places: Hashable = None  # where the KV cache and the states lay when they were captured

    def is_worthwhile(self, key: Any) -> bool:
        """Whether a pass is worth capturing: the second time that it is asked about."""
        seen = key in self._replays or key in self._seen
        if not seen:
            if len(self._seen) >= MAX_GRAPHS:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = None
        return seen

    def prepare(
        self, key: Any, places: Hashable, layout: PassLayout, write: Callable[[Numbers], None],
        run: Callable[[Tensor], list[Tensor | None]],
    ) -> CapturedPass:  # fmt: skip
        """A pass that can be replayed: `write` says what its numbers are, `run` launches it where it is not captured yet."""
        if places != self._places:
            self._drop(list(self._replays))
            self._places = places
        replay = self._replays.pop(key, None)
        numbers = PassNumbers(layout, self._device) if replay is None else replay.numbers
        if replay is None:
            write(numbers.ready())
            numbers.layout.views(numbers.host)["states"][:] = PADDING  # what is run to capture it changes no row's state
            numbers.send()
            replay = CapturedPass(numbers, run, self._pool)
            if len(self._replays) >= MAX_GRAPHS:
                self._drop([next(iter(self._replays))])
        write(numbers.ready())
        numbers.send()
        self._replays[key] = replay
        return replay

    def _drop(self, keys: Sequence[Any]) -> None:
        if keys and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # one that still runs may not lose its memory
        for key in keys:
            del self._replays[key]
