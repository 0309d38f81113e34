"""Pages of keys and values: shared by rows that begin alike, copied by who writes, given back by who goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassformer.engine.cpu.kv_pages import KvPage, PageTable
from glassformer.engine.paged_rows import PAGE, PageFormat
from glassformer.engine.protocol import CACHES, Feed, Want
from tests.engine.executors import Subject

pytestmark = pytest.mark.usefixtures("one_thread")

Tiny = Callable[..., Subject]


@pytest.fixture
def allocated_pages(monkeypatch: pytest.MonkeyPatch) -> list[KvPage]:
    """Every page that is made from now on."""
    found: list[KvPage] = []

    class Counted(KvPage):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            found.append(self)

    monkeypatch.setattr("glassformer.engine.cpu.kv_pages.KvPage", Counted)
    return found


def pages_in_use(pages: list[KvPage]) -> int:
    assert all(page.users >= 0 for page in pages)
    return sum(page.users > 0 for page in pages)


def alone(executor: Any, ids: list[int], *source: Any) -> Any:
    """The scores after these ids, of a row that has no history."""
    row = executor.open(*source)
    scores = executor.run([Feed(row, ids)])[0].host().copy()
    executor.close(row)
    return scores


class TestSharing:
    def test_fork_copies_only_pages_that_differ(self, tiny: Tiny, allocated_pages: list[KvPage]) -> None:
        executor = tiny("qwen3").cpu()
        prompt = [3 + at % 150 for at in range(2 * PAGE + 10)]
        row = executor.open()
        executor.run([Feed(row, prompt)])
        assert len(allocated_pages) == 3
        other = executor.fork(row)
        assert len(allocated_pages) == 3
        executor.run([Feed(other, [7])])
        assert len(allocated_pages) == 4  # the last page, copied
        assert [page.users for page in allocated_pages] == [2, 2, 1, 1]
        executor.run([Feed(row, [8])])
        assert len(allocated_pages) == 4  # the original is its own again
        executor.close(row)
        assert [page.users for page in allocated_pages] == [1, 1, 0, 1]
        executor.close(other)
        assert pages_in_use(allocated_pages) == 0

    @pytest.mark.parametrize("cache", CACHES)
    def test_forks_score_as_if_alone(self, cache: str, tiny: Tiny) -> None:
        executor = tiny("qwen3").cpu(cache=cache)
        prompt = [3 + at * 7 % 150 for at in range(PAGE + 20)]
        row = executor.open()
        executor.run([Feed(row, prompt)])
        whole, part, edge = executor.fork(row), executor.fork(row, 30), executor.fork(row, PAGE)
        found = executor.run([Feed(whole, [5]), Feed(row, [6]), Feed(part, [7]), Feed(edge, [8])])
        for scores, ids in zip(found, ([*prompt, 5], [*prompt, 6], [*prompt[:30], 7], [*prompt[:PAGE], 8]), strict=True):
            assert np.array_equal(scores.host(), alone(executor, ids))

    def test_forks_share_the_source_s_pages(self, tiny: Tiny, allocated_pages: list[KvPage]) -> None:
        executor = tiny("t5").cpu()
        source = [3 + at % 100 for at in range(PAGE + 1)]
        row = executor.open(source)
        executor.run([Feed(row, [2])])
        held = pages_in_use(allocated_pages)
        assert held == 3  # two of the source, one of its own; the encoder's are gone
        forks = [executor.fork(row) for _ in range(3)]
        assert pages_in_use(allocated_pages) == held
        for fork in forks:
            executor.run([Feed(fork, [5])])
        assert pages_in_use(allocated_pages) == held + 3
        for one in (row, *forks):
            executor.close(one)
        assert pages_in_use(allocated_pages) == 0


class TestMoves:
    def test_rewind_releases_pages(self, tiny: Tiny, allocated_pages: list[KvPage]) -> None:
        executor = tiny("qwen3").cpu()
        prompt = [3 + at % 150 for at in range(3 * PAGE)]
        row = executor.open()
        executor.run([Feed(row, prompt)])
        assert executor.rewind(row, PAGE + 1) == PAGE + 1
        assert pages_in_use(allocated_pages) == 2
        assert np.array_equal(executor.run([Feed(row, [9])])[0].host(), alone(executor, [*prompt[: PAGE + 1], 9]))
        executor.rewind(row, 0)
        assert pages_in_use(allocated_pages) == 0

    def test_rewind_beside_a_fork(self, tiny: Tiny) -> None:
        executor = tiny("qwen3").cpu()
        prompt = [3 + at % 150 for at in range(PAGE + 5)]
        row = executor.open()
        executor.run([Feed(row, prompt)])
        fork = executor.fork(row)
        executor.rewind(row, 10)
        one, other = executor.run([Feed(row, [9] * 3), Feed(fork, [9])])
        assert np.array_equal(one.host(), alone(executor, [*prompt[:10], 9, 9, 9]))
        assert np.array_equal(other.host(), alone(executor, [*prompt, 9]))

    def test_select_shares_pages(self, tiny: Tiny, allocated_pages: list[KvPage]) -> None:
        executor = tiny("qwen3").cpu()
        texts = [[3 + at * step % 150 for at in range(PAGE + step)] for step in (1, 5, 11)]
        rows = [executor.open() for _ in texts]
        executor.run([Feed(row, text) for row, text in zip(rows, texts, strict=True)])
        executor.select(rows, [2, 2, 0])
        assert pages_in_use(allocated_pages) == 4  # of the first and the last
        found = executor.run([Feed(row, [9 + at]) for at, row in enumerate(rows)])
        for at, (scores, parent) in enumerate(zip(found, (2, 2, 0), strict=True)):
            assert np.array_equal(scores.host(), alone(executor, [*texts[parent], 9 + at]))
        for row in rows:
            executor.close(row)
        assert pages_in_use(allocated_pages) == 0

    def test_token_tree_across_a_page_boundary(self, tiny: Tiny) -> None:
        executor = tiny("qwen3").cpu(threads=2)
        prompt = [3 + at % 150 for at in range(PAGE - 3)]
        row = executor.open()
        executor.run([Feed(row, prompt, Want.NONE)])
        tokens, parents = [10, 11, 12, 13, 14, 15, 16], [-1, 0, 0, -1, 3, 1, 4]
        (found,) = executor.run([Feed(row, tokens, Want.ALL, parents)])
        paths = [[10], [10, 11], [10, 12], [13], [13, 14], [10, 11, 15], [13, 14, 16]]
        for at, path in enumerate(paths):
            assert np.allclose(found.host(at), alone(executor, prompt + path), atol=1e-4)

    @pytest.mark.parametrize("what", ["qwen3", "t5"])
    def test_random_moves_leak_no_pages(self, what: str, tiny: Tiny, allocated_pages: list[KvPage]) -> None:
        draw, executor = random.Random(2), tiny(what).cpu()
        source = [[4, 5, 6]] if what == "t5" else []
        held: list[tuple[Any, list[int]]] = []
        for _ in range(60):
            move = draw.choice(["open", "run", "run", "fork", "rewind", "close", "select"])
            if move == "open" or not held:
                held.append((executor.open(*source), []))
            at = draw.randrange(len(held))
            row, ids = held[at]
            if move == "run":
                new = [draw.randrange(3, 130) for _ in range(min(draw.choice([1, 5, 40]), 200 - len(ids)))]
                if new:
                    (scores,) = executor.run([Feed(row, new)])
                    ids += new
                    assert np.array_equal(scores.host(), alone(executor, ids, *source))
            elif move == "fork":
                length = draw.choice([None, len(ids) // 2])
                held.append((executor.fork(row, length), ids[:length]))
            elif move == "rewind":
                del ids[executor.rewind(row, len(ids) // 3) :]
            elif move == "close":
                executor.close(row)
                del held[at]
            elif move == "select":
                parents = [draw.randrange(len(held)) for _ in held]
                before = [list(ids) for _, ids in held]
                executor.select([row for row, _ in held], parents)
                held = [(row, list(before[parent])) for (row, _), parent in zip(held, parents, strict=True)]
            owned = {id(page) for row, _ in held for page in [*row.pages.pages, *(row.source_pages.pages if source else [])]}
            assert pages_in_use(allocated_pages) == len(owned)
        for row, _ in held:
            executor.close(row)
        assert pages_in_use(allocated_pages) == 0


class TestPages:
    @pytest.mark.parametrize("cache", CACHES)
    def test_pages_read_back_what_was_written(self, cache: str) -> None:
        draw = np.random.default_rng(1)
        pages = PageTable(PageFormat(2, 3, 10, cache))
        length = PAGE + 7
        pages.reserve(0, length)
        keys, values = (draw.standard_normal((3, length, 10)).astype(np.float32) for _ in range(2))
        keys[:, 3] = 0
        pages.write(1, keys, values)
        wanted = {"f32": 0.0, "f16": 1e-3, "bf16": 8e-3, "q8": 2e-2}[cache]
        for found, given in zip(pages.read(1, length), (keys, values), strict=True):
            assert found.shape == given.shape
            assert np.abs(found - given).max() <= wanted * np.abs(given).max()

    def test_page_table_grows_and_shrinks(self) -> None:
        pages = PageTable(PageFormat(1, 1, 2, "f32"))
        pages.reserve(0, 40 * PAGE)
        assert len(pages.pages) == 40
        assert pages.addresses[:40].tolist() == [page.address for page in pages.pages]
        pages.truncate(3 * PAGE)
        pages.reserve(3 * PAGE, 5 * PAGE)
        assert pages.addresses[:5].tolist() == [page.address for page in pages.pages]
