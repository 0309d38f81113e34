"""The prefix tree finds what a comparison with every text finds."""

from __future__ import annotations

import random

import pytest

from glassformer.engine.prefix_tree import BLOCK, PrefixTree
from glassformer.engine.protocol import common_prefix


def random_text(draw: random.Random) -> tuple[int, ...]:
    """One that shares beginnings of many lengths with others."""
    shared = [draw.randint(1, 2)] * draw.randint(0, 3 * BLOCK)
    return (*shared, *(draw.randint(1, 3) for _ in range(draw.randint(1, 2 * BLOCK))))


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_prefix_is_that_of_a_comparison_with_all(seed: int) -> None:
    draw, tree, texts = random.Random(seed), PrefixTree[int](), dict[int, tuple[int, ...]]()
    for number in range(300):
        if texts and draw.random() < 0.4:
            removed = draw.choice([*texts])
            tree.remove(texts.pop(removed), removed)
        texts[number] = random_text(draw)
        tree.add(texts[number], number)
        query = random_text(draw)
        value, length = tree.longest(query)
        assert length == max(common_prefix(text, query) for text in texts.values())
        assert value is None if length == 0 else common_prefix(texts[value or 0], query) == length
    for number, text in texts.items():
        tree.remove(text, number)
    assert tree.tokens == 0
    assert tree.longest(random_text(draw)) == (None, 0)
