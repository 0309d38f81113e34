"""The GPU engine's paged KV cache: one pool of pages on the device, and rows that hold numbers of pages.

Rows that share a prefix share its pages: to fork a row is to count its pages once more, and a shared page is copied when it
is written to. The first page belongs to nobody: what padding writes goes there.

Shapes: the pool (pages, layers, 2, kv_heads, PAGE, head_size): keys, then values.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from glassformer.engine.gpu.block_pool import BlockPool
from glassformer.engine.paged_rows import PAGE, PagedRow, PageFormat
from glassformer.engine.protocol import GPU_CACHES
from glassformer.ground.ownership import NotCopied

DTYPES = dict(zip(GPU_CACHES, (torch.float32, torch.float16, torch.bfloat16), strict=True))
FIRST_PAGES = 64  # of a pool, at least


class KvPool(BlockPool):
    """All pages of one format."""

    def __init__(self, page_format: PageFormat, device: torch.device) -> None:
        self.format = f = page_format
        shape = (f.layers, 2, f.kv_heads, PAGE, f.head_size)
        super().__init__(shape, DTYPES[f.cache], device, what="keys and values", least=FIRST_PAGES)

    def _content(self, blocks: int) -> str:
        return f"{blocks * PAGE} tokens"


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
