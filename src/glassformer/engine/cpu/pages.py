"""What the CPU engine remembers of its rows: keys and values in pages, which rows that begin alike share.

A page holds 64 tokens of every layer. To fork a row is to count its pages once more; whoever writes into a page that others
see takes a copy first. So a tree or a beam costs what differs, and nothing is moved when a row grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.cpu.library import PAGE, Store

BYTES = {Store.F32: 4, Store.F16: 2, Store.BF16: 2, Store.Q8: 1}
DTYPES = {Store.F32: np.float32, Store.F16: np.float16, Store.BF16: np.uint16, Store.Q8: np.int8}
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Format:
    """What a page holds of each token: a key and a value for each layer and group of heads."""

    layers: int
    groups: int
    size: int
    store: Store

    @property
    def bytes(self) -> int:
        scales = 2 * PAGE * 4 if self.store is Store.Q8 else 0
        return self.layers * self.groups * (2 * PAGE * self.size * BYTES[self.store] + scales)


class Page:
    __slots__ = ("address", "memory", "users")

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size, np.uint8)
        self.address: int = self.memory.ctypes.data
        self.users = 1


class Pages:
    """One row's pages, in order."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.held: list[Page] = []
        self.addresses = np.zeros(8, np.uint64)

    def reserve(self, begin: int, end: int) -> None:
        """Make tokens [begin, end) writable: pages that others see are copied first, and lacking ones made."""
        for number in range(begin // PAGE, -(-end // PAGE)):
            if number == len(self.held):
                self._put(number, Page(self.form.bytes))
            elif self.held[number].users > 1:
                own = Page(self.form.bytes)
                own.memory[:] = self.held[number].memory
                self.held[number].users -= 1
                self._put(number, own)

    def _put(self, number: int, page: Page) -> None:
        if number == len(self.addresses):
            self.addresses = np.concatenate((self.addresses, np.zeros_like(self.addresses)))
        self.held[number : number + 1] = [page]
        self.addresses[number] = page.address

    def keep(self, length: int) -> None:
        """Give back what lies behind so many tokens."""
        needed = -(-length // PAGE)
        for page in self.held[needed:]:
            page.users -= 1
        del self.held[needed:]

    def read(self, layer: int, length: int) -> tuple[Floats, Floats]:
        """A layer's keys and values of so many tokens: (groups, length, size) each."""
        keys, values = [], []
        for number, page in enumerate(self.held[: -(-length // PAGE)]):
            count = min(PAGE, length - number * PAGE)  # what lies behind was never written
            some_keys, some_values, scales = self._planes(page, layer)
            keys.append(_floats(some_keys[:, :, :count], scales[:, 0, None, :count]).swapaxes(1, 2))
            values.append(_floats(some_values[:, :count], scales[:, 1, :count, None]))
        return np.concatenate(keys, 1), np.concatenate(values, 1)

    def write(self, layer: int, keys: Floats, values: Floats) -> None:
        """A layer's keys and values of all tokens anew."""
        for number, page in enumerate(self.held):
            at = slice(number * PAGE, (number + 1) * PAGE)
            into_keys, into_values, scales = self._planes(page, layer)
            count = keys[:, at].shape[1]
            _put(keys[:, at].swapaxes(1, 2), into_keys[:, :, :count], scales[:, 0, None, :count])
            _put(values[:, at], into_values[:, :count], scales[:, 1, :count, None])

    def _planes(self, page: Page, layer: int) -> tuple[Any, Any, Any]:
        """Views of a page: keys (groups, size, PAGE), values (groups, PAGE, size), and scales (groups, 2, PAGE)."""
        form = self.form
        whole = page.memory.reshape(form.layers, form.groups, -1)[layer]
        half = PAGE * form.size * BYTES[form.store]
        keys, values = (whole[:, at : at + half].view(DTYPES[form.store]) for at in (0, half))
        scales = whole[:, 2 * half :].view(np.float32).reshape(form.groups, 2, -1)
        return keys.reshape(-1, form.size, PAGE), values.reshape(-1, PAGE, form.size), scales

    def share(self, length: int) -> Pages:
        """Another row's view of the first so many tokens."""
        other = Pages(self.form)
        other.held = self.held[: -(-length // PAGE)]
        other.addresses = self.addresses.copy()
        for page in other.held:
            page.users += 1
        return other


def _floats(part: Any, scales: Floats) -> Floats:
    """Stored numbers in float32."""
    if part.dtype == np.uint16:
        bits: npt.NDArray[np.uint32] = part.astype(np.uint32) << 16
        return bits.view(np.float32)
    found: Floats = part.astype(np.float32)
    return np.multiply(found, scales) if part.dtype == np.int8 else found


def _put(values: Floats, into: Any, scales: Any) -> None:
    """Floats as stored numbers."""
    if into.dtype == np.uint16:
        bits = np.ascontiguousarray(values).view(np.uint32)
        into[...] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    elif into.dtype == np.int8:
        axis = scales.shape.index(1, 1)
        scales[...] = np.abs(values).max(axis, keepdims=True) / 127
        into[...] = np.round(values / np.where(scales > 0, scales, 1))
    else:
        into[...] = values


@dataclass(eq=False, slots=True)
class CpuRow:
    own: Pages
    source_pages: Pages | None = None
    length: int = 0
    open: bool = True
    source: tuple[int, ...] = ()  # what an encoder is to read
    encoded: bool = False

    def fork(self, length: int) -> CpuRow:
        source = self.source_pages.share(len(self.source)) if self.source_pages else None
        return CpuRow(self.own.share(length), source, length, True, self.source, self.encoded)

    def release(self) -> None:
        self.own.keep(0)
        if self.source_pages:
            self.source_pages.keep(0)


def addresses(pages: Pages | None) -> int | None:
    return None if pages is None else int(pages.addresses.ctypes.data)
