"""Texts by their beginnings: which of many shares the longest prefix with a new one.

A radix tree whose edges are blocks of tokens, so that looking up a text costs a step for each of its blocks, however many
texts there are; where texts part inside a block, bisection finds the nearest. Beginnings that texts share are in it once.
Each text stands under a salt, and is found under the same salt alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

from glassformer.engine.protocol import common_prefix

BLOCK = 16  # tokens
Value = TypeVar("Value")
Item = TypeVar("Item")
Ids: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class PrefixNode(Generic[Value]):
    """Where texts go on after some whole blocks."""

    children: dict[Ids, PrefixNode[Value]] = field(default_factory=dict)
    blocks: list[Ids] = field(default_factory=list)  # the children's, sorted
    ends: list[tuple[Ids, Value]] = field(default_factory=list)  # texts with no other whole block: their rests, sorted

    def add_child(self, block: Ids) -> PrefixNode[Value]:
        insort(self.blocks, block)
        self.children[block] = PrefixNode()
        return self.children[block]

    def remove_child(self, block: Ids) -> None:
        del self.children[block], self.blocks[bisect_left(self.blocks, block)]


class PrefixTree(Generic[Value]):
    """Values, each under a salt and the ids of a text.

    >>> tree = PrefixTree[str]()
    >>> tree.add([1, 2, 3], "first"); tree.add([1, 2, 4, 5], "second")
    >>> tree.longest([1, 2, 4, 9])
    ('second', 3)
    >>> tree.longest([1, 2, 4, 9], "another salt")
    (None, 0)
    """

    def __init__(self) -> None:
        self._roots: dict[Hashable, PrefixNode[Value]] = {}  # by salt
        self.tokens = 0  # in all edges and rests: each shared beginning counts once

    def add(self, ids: Sequence[int], value: Value, salt: Hashable = None) -> None:
        node = self._roots.setdefault(salt, PrefixNode())
        blocks, rest = _blocks(ids)
        for block in blocks:
            if block in node.children:
                node = node.children[block]
            else:
                node = node.add_child(block)
                self.tokens += BLOCK
        insort(node.ends, (rest, value), key=itemgetter(0))
        self.tokens += len(rest)

    def remove(self, ids: Sequence[int], value: Value, salt: Hashable = None) -> None:
        """Take out a value that was added under these, and what only it needed."""
        blocks, rest = _blocks(ids)
        path = [self._roots[salt]]
        for block in blocks:
            path.append(path[-1].children[block])
        ends = path[-1].ends
        first = bisect_left(ends, rest, key=itemgetter(0))
        del ends[next(place for place in range(first, len(ends)) if ends[place][1] is value)]
        self.tokens -= len(rest)
        for parent, block in zip(reversed(path[:-1]), reversed(blocks), strict=True):
            child = parent.children[block]
            if child.children or child.ends:
                break
            parent.remove_child(block)
            self.tokens -= BLOCK
        if not path[0].children and not path[0].ends:
            del self._roots[salt]

    def longest(self, ids: Sequence[int], salt: Hashable = None) -> tuple[Value | None, int]:
        """A value whose ids have the longest common prefix with these, and that prefix's length; None where none has any."""
        node, depth = self._roots.get(salt), 0
        if node is None:
            return None, 0
        blocks, _ = _blocks(ids)
        for block in blocks:
            if block not in node.children:
                break
            node, depth = node.children[block], depth + BLOCK
        following = tuple(ids[depth : depth + BLOCK])
        best, length = None, -1
        for rest, value in neighbours(node.ends, bisect_left(node.ends, following, key=itemgetter(0))):
            if (common := common_prefix(rest, following)) > length:
                best, length = value, common
        for block in neighbours(node.blocks, bisect_left(node.blocks, following)):
            if (common := common_prefix(block, following)) > length:
                best, length = next(_values(node.children[block])), common
        return (None, 0) if best is None or not depth + length else (best, depth + length)


def neighbours(items: Sequence[Item], place: int) -> Sequence[Item]:
    """The items beside a place: in a sorted list, one of them has the longest prefix in common with what belongs there."""
    return items[max(0, place - 1) : place + 1]


def _blocks(ids: Sequence[int]) -> tuple[list[Ids], Ids]:
    """The whole blocks of a text, and what is left."""
    whole = len(ids) - len(ids) % BLOCK
    return [tuple(ids[start : start + BLOCK]) for start in range(0, whole, BLOCK)], tuple(ids[whole:])


def _values(node: PrefixNode[Value]) -> Iterator[Value]:
    """The values at a node and behind it."""
    while not node.ends:
        node = next(iter(node.children.values()))
    for _, value in node.ends:
        yield value
