"""The pool of pages on the device: shared by rows that begin alike, copied by who writes, given back by who goes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from glassformer.engine.gpu import block_pool, kv_pool
from glassformer.engine.gpu.block_pool import PADDING
from glassformer.engine.gpu.kv_pool import KvPool, PageList
from glassformer.engine.paged_rows import PAGE, PageFormat
from glassformer.ground.errors import ExecutorError

FORMAT = PageFormat(layers=2, kv_heads=1, head_size=4, cache="f16")


def pool(monkeypatch: pytest.MonkeyPatch | None = None, pages: int | None = None) -> KvPool:
    if monkeypatch is not None and pages is not None:
        monkeypatch.setattr(kv_pool, "FIRST_PAGES", pages)
    return KvPool(FORMAT, torch.device("cpu"))


def marked(pages: PageList, tokens: int) -> list[float]:
    """The first number of each token's key in the first layer."""
    keys, _ = pages.read(0, tokens)
    numbers: list[float] = keys[0, :, 0].tolist()
    return numbers


def mark(pages: PageList, token: int, number: float) -> None:
    pages.reserve(token, token + 1)
    pages.pool.tensor[pages.pages[token // PAGE], 0, 0, 0, token % PAGE, 0] = number


def test_bytes_of_a_page() -> None:
    assert FORMAT.bytes == pool().tensor[0].nbytes


def test_nobody_gets_the_page_of_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = PageList(pool(monkeypatch, 2))
    pages.reserve(0, 5 * PAGE)
    assert PADDING not in pages.pages
    assert len(set(pages.pages)) == 5


def test_rows_that_share_pages_see_only_their_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that grow, fork, shrink and go at random, against lists; the pool begins small, and ends empty."""
    draw = random.Random(2)
    shared = pool(monkeypatch, 2)
    rows: list[tuple[PageList, list[float]]] = [(PageList(shared), [])]
    for step in range(400):
        at = draw.randrange(len(rows))
        pages, numbers = rows[at]
        move = draw.choice(["grow", "grow", "grow", "fork", "shrink", "go"])
        if move == "grow":
            for _ in range(draw.choice([1, 30, 70])):
                mark(pages, len(numbers), step)
                numbers.append(step)
        elif move == "fork" and len(rows) < 9:
            length = draw.randint(0, len(numbers))
            rows.append((pages.share(length), numbers[:length]))
        elif move == "shrink":
            del numbers[draw.randint(0, len(numbers)) :]
            pages.truncate(len(numbers))
        elif move == "go" and len(rows) > 1:
            pages.truncate(0)
            del rows[at]
        for pages, numbers in rows:
            assert not numbers or marked(pages, len(numbers)) == numbers
    for pages, _ in rows:
        pages.truncate(0)
    assert shared.used == 0


def test_what_is_written_is_read() -> None:
    pages = PageList(pool())
    pages.reserve(0, PAGE + 3)
    keys, values = torch.randn(2, 1, PAGE + 3, 4).half().float()
    pages.write(1, keys, values)
    assert all(torch.equal(*pair) for pair in zip(pages.read(1, PAGE + 3), (keys, values), strict=True))
    assert not pages.read(0, PAGE + 3)[0].any()


def test_a_pool_that_cannot_grow_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card with memory for half a page more; rows keep what they have."""
    full = pool(monkeypatch, 3)
    pages = PageList(full)
    pages.reserve(0, 2 * PAGE)
    full.device = torch.device("cuda")
    monkeypatch.setattr(block_pool, "free_memory", lambda device: 3 * FORMAT.bytes + FORMAT.bytes // 2)
    with pytest.raises(ExecutorError, match="lacks memory for more keys and values than those of 192 tokens. Close rows"):
        pages.reserve(2 * PAGE, 3 * PAGE)
    assert len(pages.pages) == full.used == 2


@pytest.mark.parametrize(("free", "grown"), [(10**9, 6), (5 * FORMAT.bytes * 10 // 9 + 9, 5)])
def test_a_pool_grows_as_far_as_memory_allows(free: int, grown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many pages; or as many as fit beside the old ones, which are copied."""
    small = pool(monkeypatch, 3)
    numbers: list[Any] = [small.allocate() for _ in range(2)]
    monkeypatch.setattr(small, "device", torch.device("cuda"))
    monkeypatch.setattr(block_pool, "free_memory", lambda device: free)
    monkeypatch.setattr(small, "_zeros", lambda pages: torch.zeros(pages, *small.tensor.shape[1:], dtype=small.tensor.dtype))
    numbers.append(small.allocate())
    assert len(small.tensor) == grown
    assert len(set(numbers)) == 3
