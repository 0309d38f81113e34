"""The GPU engine's paged KV cache: one pool of pages on the device, and rows that hold numbers of pages.

Rows that share a prefix share its pages: to fork a row is to count its pages once more, and a shared page is copied when it
is written to. The first page belongs to nobody: what padding writes goes there.

Shapes: the pool (pages, layers, 2, kv_heads, PAGE, head_size): keys, then values.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

from glassformer.engine.gpu.device import device_errors, free_memory
from glassformer.engine.paged_rows import PAGE, PagedRow, PageFormat
from glassformer.engine.protocol import GPU_CACHES
from glassformer.ground.errors import ExecutorError
from glassformer.ground.ownership import NotCopied

DTYPES = dict(zip(GPU_CACHES, (torch.float32, torch.float16, torch.bfloat16), strict=True))
PADDING_PAGE = 0
FIRST_PAGES = 64  # of a pool, at least
FIRST_SHARE = 1 / 16  # of the free memory that a pool begins with


class KvPool:
    """All pages of one format. It grows when there is no free page; then its tensor lies elsewhere."""

    def __init__(self, page_format: PageFormat, device: torch.device) -> None:
        self.format = page_format
        self.dtype = DTYPES[page_format.cache]
        self.device = device
        pages = FIRST_PAGES
        if device.type == "cuda":
            pages = max(pages, int(free_memory(device) * FIRST_SHARE) // page_format.bytes)
        self.tensor = self._zeros(pages)
        self._users = [0] * pages  # rows that hold each page
        self._users[PADDING_PAGE] = 1
        self._free = list(range(pages - 1, PADDING_PAGE, -1))
        self._abandoned: deque[list[int]] = deque()  # pages of rows that were dropped without being closed

    def _zeros(self, pages: int) -> Tensor:
        f = self.format
        with device_errors("keys and values"):
            return torch.zeros(pages, f.layers, 2, f.kv_heads, PAGE, f.head_size, dtype=self.dtype, device=self.device)

    @property
    def used(self) -> int:
        """How many pages rows hold."""
        self._collect()
        return len(self._users) - len(self._free) - 1

    def allocate(self) -> int:
        if not self._free:
            self._collect()
        if not self._free:
            self._grow()
        page = self._free.pop()
        self._users[page] = 1
        return page

    def copy(self, page: int) -> int:
        """Another page with what a shared one holds, which is released."""
        copied = self.allocate()
        self.tensor[copied] = self.tensor[page]
        self.release([page])
        return copied

    def is_shared(self, page: int) -> bool:
        return self._users[page] > 1

    def retain(self, pages: list[int]) -> None:
        for page in pages:
            self._users[page] += 1

    def release(self, pages: list[int]) -> None:
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def abandon(self, pages: list[int]) -> None:
        """Release pages from a finalizer, which may run in any thread and at any moment: so only later."""
        if pages:
            self._abandoned.append(pages)

    def _collect(self) -> None:
        while self._abandoned:
            self.release(self._abandoned.popleft())

    def _grow(self) -> None:
        """Twice as many pages, or as many as there is memory for beside the old ones, which are copied."""
        pages = len(self._users)
        more = pages
        if self.device.type == "cuda":
            more = min(more, (free_memory(self.device) * 9 // 10 - pages * self.format.bytes) // self.format.bytes)
        if more < 1:
            raise ExecutorError(
                f"the GPU lacks memory for more keys and values than those of {pages * PAGE} tokens. Close rows, feed fewer "
                "at a time, or use smaller weights."
            )
        grown = self._zeros(pages + more)
        grown[:pages] = self.tensor
        self.tensor = grown
        self._users += [0] * more
        self._free += range(pages + more - 1, pages - 1, -1)


class PageList(NotCopied):
    """One row's pages, in order."""

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self.pages: list[int] = []  # always this list: it is what a row that is forgotten gives back
        weakref.finalize(self, pool.abandon, self.pages).atexit = False

    def reserve(self, begin: int, end: int) -> None:
        """Make tokens [begin, end) writable: shared pages are copied, missing ones made."""
        for index in range(begin // PAGE, -(-end // PAGE)):
            if index == len(self.pages):
                self.pages.append(self.pool.allocate())
            elif self.pool.is_shared(self.pages[index]):
                self.pages[index] = self.pool.copy(self.pages[index])

    def truncate(self, length: int) -> None:
        needed = -(-length // PAGE)
        self.pool.release(self.pages[needed:])
        del self.pages[needed:]

    def share(self, length: int) -> PageList:
        shared = PageList(self.pool)
        pages = self.pages[: -(-length // PAGE)]
        self.pool.retain(pages)
        shared.pages += pages
        return shared

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the first tokens: (kv_heads, length, head_size) each."""
        pages = self.pool.tensor[self._index(length), layer].float()  # (pages, 2, kv_heads, PAGE, head_size)
        keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        return keys, values

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Overwrite a layer's keys and values of all tokens."""
        for which, new in enumerate((keys, values)):
            for index, page in enumerate(self.pages):
                part = new[:, index * PAGE : (index + 1) * PAGE]
                self.pool.tensor[page, layer, which, :, : part.shape[1]] = part.to(self.pool.dtype)

    def _index(self, length: int) -> Tensor:
        return torch.from_numpy(np.array(self.pages[: -(-length // PAGE)], np.int64)).to(self.pool.device)


class GpuRow(PagedRow[PageList]):
    __slots__ = ("last_chosen",)

    last_chosen: tuple[Tensor, int]  # where the device has the token that it chose last for the row, once it did
