"""How tensors are divided among ranks: ranges of indices along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

Ranges: TypeAlias = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A rank's part of a tensor: ranges of indices along an axis, in order; none where other ranks have all of it."""

    axis: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Split:
    """How an axis of a tensor is divided among all ranks."""

    axis: int
    size: int  # of the whole axis
    parts: tuple[Ranges, ...]  # by rank

    def part(self, rank: int) -> TensorPart:
        return TensorPart(self.axis, self.parts[rank])

    def owned(self, rank: int) -> Ranges:
        """The ranges of a rank that no earlier one has."""
        earlier = {part for parts in self.parts[:rank] for part in parts}
        return tuple(part for part in self.parts[rank] if part not in earlier)

    def along(self, axis: int) -> Split:
        """This split along another axis, of another tensor."""
        return replace(self, axis=axis)


def even_parts(size: int, ranks: int) -> Ranges:
    """A rank's part of `size` things, each as large as the others or larger by one.

    >>> even_parts(5, 2)
    (range(0, 2), range(2, 5))
    """
    return tuple(range(rank * size // ranks, (rank + 1) * size // ranks) for rank in range(ranks))


def head_parts(heads: int, groups: int, ranks: int) -> tuple[Ranges, Ranges]:
    """Each rank's query heads, and the key and value heads that these read.

    >>> head_parts(6, 3, 2)
    ((range(0, 2), range(2, 6)), (range(0, 1), range(1, 3)))
    >>> head_parts(6, 2, 3)
    ((range(0, 3), range(3, 4), range(4, 6)), (range(0, 1), range(1, 2), range(1, 2)))
    """
    per_group = heads // groups
    if ranks <= groups:
        shared = even_parts(groups, ranks)
        return tuple(range(part.start * per_group, part.stop * per_group) for part in shared), shared
    queries: list[range] = []
    read: list[range] = []
    for group, readers in enumerate(even_parts(ranks, groups)):
        first = group * per_group
        for part in even_parts(per_group, len(readers)):
            queries.append(range(first + part.start, first + part.stop))
            read.append(range(group, group + 1))
    return tuple(queries), tuple(read)


def contiguous(axis: int, parts: Sequence[range], step: int = 1) -> Split:
    """A split in which each rank has one range, of `step` indices for each thing."""
    ranges = tuple((range(part.start * step, part.stop * step),) for part in parts)
    return Split(axis, max(part.stop for part in parts) * step, ranges)


def joined(ranges: Iterable[range]) -> Ranges:
    """Ranges in order, neighbors as one."""
    made: list[range] = []
    for part in sorted(ranges, key=lambda part: part.start):
        if made and made[-1].stop == part.start:
            made[-1] = range(made[-1].start, part.stop)
        else:
            made.append(part)
    return tuple(made)


def vocabulary_split(size: int, ranks: int, axis: int = 0) -> Split:
    """How a table of tokens, or an axis of scores for them, is divided."""
    return contiguous(axis, even_parts(size, ranks))
