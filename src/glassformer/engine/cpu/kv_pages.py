"""The CPU engine's paged KV cache: rows that share a prefix share its pages.

A page holds 64 tokens of every layer. To fork a row is to count its pages once more, and a shared page is copied when it is
written to. So a tree or a beam costs what differs, and nothing is moved when a row grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.paged_rows import BYTES, PAGE, PagedRow, PageFormat
from glassformer.ground.ownership import NotCopied

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "q8": np.int8}
Floats = npt.NDArray[np.float32]


class KvPage(NotCopied):
    __slots__ = ("address", "memory", "users")

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size, np.uint8)
        self.address: int = self.memory.ctypes.data
        self.users = 1


class PageTable(NotCopied):
    """One row's pages, in order."""

    def __init__(self, page_format: PageFormat) -> None:
        self.format = page_format
        self.pages: list[KvPage] = []
        self.addresses = np.zeros(8, np.uint64)

    def reserve(self, begin: int, end: int) -> None:
        """Make tokens [begin, end) writable: shared pages are copied, missing ones made."""
        for index in range(begin // PAGE, -(-end // PAGE)):
            if index == len(self.pages):
                self._set_page(index, KvPage(self.format.bytes))
            elif self.pages[index].users > 1:
                copy = KvPage(self.format.bytes)
                copy.memory[:] = self.pages[index].memory
                self.pages[index].users -= 1
                self._set_page(index, copy)

    def _set_page(self, index: int, page: KvPage) -> None:
        if index == len(self.addresses):
            self.addresses = np.concatenate((self.addresses, np.zeros_like(self.addresses)))
        self.pages[index : index + 1] = [page]
        self.addresses[index] = page.address

    def truncate(self, length: int) -> None:
        """Release the pages after the first `length` tokens."""
        needed = -(-length // PAGE)
        for page in self.pages[needed:]:
            page.users -= 1
        del self.pages[needed:]

    def read(self, layer: int, length: int) -> tuple[Floats, Floats]:
        """A layer's keys and values of the first tokens: (kv_heads, length, head_size) each."""
        keys, values = [], []
        for index, page in enumerate(self.pages[: -(-length // PAGE)]):
            count = min(PAGE, length - index * PAGE)  # the rest was never written
            page_keys, page_values, scales = self._views(page, layer)
            keys.append(_to_float32(page_keys[:, :, :count], scales[:, 0, None, :count]).swapaxes(1, 2))
            values.append(_to_float32(page_values[:, :count], scales[:, 1, :count, None]))
        return np.concatenate(keys, 1), np.concatenate(values, 1)

    def write(self, layer: int, keys: Floats, values: Floats) -> None:
        """Overwrite a layer's keys and values of all tokens."""
        for index, page in enumerate(self.pages):
            tokens = slice(index * PAGE, (index + 1) * PAGE)
            page_keys, page_values, scales = self._views(page, layer)
            count = keys[:, tokens].shape[1]
            _store(keys[:, tokens].swapaxes(1, 2), page_keys[:, :, :count], scales[:, 0, None, :count])
            _store(values[:, tokens], page_values[:, :count], scales[:, 1, :count, None])

    def _views(self, page: KvPage, layer: int) -> tuple[Any, Any, Any]:
        """A layer's keys (kv_heads, head_size, PAGE), values (kv_heads, PAGE, head_size), and scales (kv_heads, 2, PAGE)."""
        shapes, cache = self.format.layer_shapes, self.format.cache
        begin = PAGE * sum(heads * self.format.head_bytes(size) for heads, size in shapes[:layer])
        kv_heads, size = shapes[layer]
        layer_bytes = page.memory[begin : begin + PAGE * kv_heads * self.format.head_bytes(size)].reshape(kv_heads, -1)
        half = PAGE * size * BYTES[cache]
        keys, values = (layer_bytes[:, begin : begin + half].view(DTYPES[cache]) for begin in (0, half))
        scales = layer_bytes[:, 2 * half :].view(np.float32).reshape(kv_heads, 2, -1)
        return keys.reshape(-1, size, PAGE), values.reshape(-1, PAGE, size), scales

    def share(self, length: int) -> PageTable:
        """A table for another row, of the first `length` tokens."""
        shared = PageTable(self.format)
        shared.pages = self.pages[: -(-length // PAGE)]
        shared.addresses = self.addresses.copy()
        for page in shared.pages:
            page.users += 1
        return shared


def _to_float32(part: Any, scales: Floats) -> Floats:
    """Stored numbers in float32."""
    if part.dtype == np.uint16:
        bits: npt.NDArray[np.uint32] = part.astype(np.uint32) << 16
        return bits.view(np.float32)
    values: Floats = part.astype(np.float32)
    return np.multiply(values, scales) if part.dtype == np.int8 else values


def _store(values: Floats, into: Any, scales: Any) -> None:
    """Write floats as stored numbers."""
    if into.dtype == np.uint16:
        bits = np.ascontiguousarray(values).view(np.uint32)
        into[...] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    elif into.dtype == np.int8:
        axis = scales.shape.index(1, 1)
        scales[...] = np.abs(values).max(axis, keepdims=True) / 127
        into[...] = np.round(values / np.where(scales > 0, scales, 1))
    else:
        into[...] = values


class CpuRow(PagedRow[PageTable]):
    __slots__ = ()


def page_addresses(pages: PageTable | None) -> int | None:
    return None if pages is None else int(pages.addresses.ctypes.data)
