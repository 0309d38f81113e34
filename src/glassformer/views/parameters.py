"""Parameters: every tensor with its shape, kind and bytes, as a tree of modules with equal blocks once, or one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from glassformer.page.document import Cell, Column, Long, Page, Part, Row, Style, Table, Words
from glassformer.page.format import count, many, share, size, storage, tame
from glassformer.views.view import View


@dataclass(frozen=True)
class Parameter:
    """One tensor."""

    name: str  # as the model has it: its module's, and its own
    shape: tuple[int, ...]
    elements: int
    kind: str | None = None  # F32, BF16, Q4_K, …; None where there are no weights, and so are the next two
    bytes: int | None = None
    bits: float | None = None  # for each number
    written: str | None = None  # what the file calls it, where that is something else
    statistics: Statistics | None = None


@dataclass(frozen=True)
class Module:
    """A module: its own tensors, and the modules inside it."""

    name: str  # dotted; the whole model's is empty
    tensors: int  # its own and those inside
    elements: int
    bytes: int | None
    parameters: tuple[Parameter, ...]
    modules: tuple[Module, ...]

    def walk(self) -> Iterator[Parameter]:
        """Its own tensors and those inside."""
        yield from self.parameters
        for inner in self.modules:
            yield from inner.walk()


@dataclass(frozen=True)
class Kind:
    """All tensors that are stored alike."""

    kind: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Tied:
    """A name for what is a parameter under another name already."""

    name: str
    same: str
    bytes: int | None  # that the file gives it once more; None: it is there once


@dataclass(frozen=True)
class Parameters(View):
    """Everything that a model has learnt. The sums are of all of it; the tree holds what was asked for."""

    SCHEMA = "glassformer.parameters/1"

    model: str
    family: str | None  # its model_type; None where it is not known
    tensors: int
    elements: int
    bytes: int | None  # None: there are no weights here
    kinds: tuple[Kind, ...]  # the one that takes most room first
    tied: tuple[Tied, ...]
    unused: tuple[Parameter, ...]  # in the file, and of no use to the model
    missing: tuple[str, ...]  # not in the file
    only: str | None  # what the tree was chosen by
    tree: Module

    @property
    def flat(self) -> tuple[Parameter, ...]:
        """The tensors of the tree in a row."""
        return tuple(self.tree.walk())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Their shapes by name, as a state_dict tells them."""
        return {one.name: one.shape for one in self.tree.walk()}

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Parameters({self.model!r}: {self.elements:,} in {self.tensors} tensors)"


FAR = 6  # standard deviations from the mean, beyond which a number is out of line


@dataclass(frozen=True)
class Histogram:
    """How many numbers lie between each two edges, as numpy.histogram counts them."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Statistics:
    """Of the finite numbers; where there is none, there is nothing to tell."""

    mean: float | None
    deviation: float | None  # of a sample (n - 1), as torch has it; None for a single number
    least: float | None
    most: float | None
    zeros: float  # share of all numbers
    outliers: float  # share of all numbers that lie further than FAR deviations from the mean
    nans: int  # numbers that are none
    infinite: int
    histogram: Histogram | None = None


BARS = "▁▂▃▄▅▆▇█"
MOST = 48  # tensors whose statistics are shown
SIXTEEN = 2  # bytes of a number as models are mostly published
SIZES = (Column("parameters", "number"), Column("bytes", "number", keep=8), Column("kind", keep=8))


def draw(view: Parameters, everything: bool = False) -> Page:
    """Equal blocks once, and the middle of long lists left out, unless `everything` is wanted."""
    chosen = view.flat
    parts: list[Part] = [Words(sentence(view)), *kinds(view), Words("")]
    if view.only is not None:
        line = f"{many(len(chosen), 'tensor')} with {view.tree.elements:,} parameters"
        parts.append(Words(f"{tame(view.only)}: {line}", "strong"))
    if any(one.statistics for one in chosen):
        parts += [*statistics(chosen, everything), *unsound(chosen)]
    elif everything or view.only is not None:
        parts.append(listing(chosen))
    else:
        parts.append(tree(view.tree))
    parts += [Words(line, "dim") for line in remarks(view)]
    return Page(f"{view.model}: {view.elements:,} parameters", tuple(parts))


def sentence(view: Parameters) -> str:
    """What it all comes to."""
    family = f" ({view.family})" if view.family else ""
    line = f"{tame(view.model)}{family}: {view.elements:,} parameters in {many(view.tensors, 'tensor')}"
    if view.bytes is None:
        return (
            f"{line}.\nThere are no weights here: the shapes are those that the config makes.\n"
            f"In 16 bits each they would take {storage(view.elements * SIXTEEN)}."
        )
    return f"{line}, {storage(view.bytes)}"


def kinds(view: Parameters) -> list[Part]:
    if not view.kinds or view.bytes is None:
        return []
    columns = (Column("kind"), Column("tensors", "number"), Column("parameters", "number"), Column("bytes", "number"),
               Column("bits each", "number"))  # fmt: skip
    rows = [_kind(one.kind, one.tensors, one.elements, one.bytes) for one in view.kinds]
    if len(rows) > 1:
        rows.append(_kind("all", view.tensors, view.elements, view.bytes, "dim"))
    return [Words(""), Table(columns, tuple(rows))]


def _kind(name: str, tensors: int, elements: int, room: int, style: Style = "") -> Row:
    return Row((name, f"{tensors:,}", count(elements), storage(room), f"{8 * room / max(elements, 1):.2f}"), style)


# The tree -------------------------------------------------------------------------------------------------------


def tree(root: Module) -> Table:
    return Table((Column("module", least=20), Column("shape"), *SIZES), tuple(_inside(root, 0)))


def _inside(module: Module, depth: int) -> Iterator[Row]:
    """A module's tensors and modules; modules that differ in nothing but their number are shown once."""
    for one in module.parameters:
        yield _leaf(one.name.rpartition(".")[2], one, depth)
    for alike in _groups(module.modules):
        first = alike[0]
        own = first.name.removeprefix(f"{module.name}.") if module.name else first.name
        if _numbered(first):
            own = f"{_ranges([int(one.name.rpartition('.')[2]) for one in alike])}{', each' if len(alike) > 1 else ''}"
        while not first.parameters and len(first.modules) == 1 and not _numbered(first.modules[0]):
            first = first.modules[0]  # a module around one module only says where that is
            own += f".{first.name.rpartition('.')[2]}"
        if not first.modules and not _numbered(first):  # its tensors alone are enough to name it
            yield from (_leaf(f"{own}.{one.name.rpartition('.')[2]}", one, depth) for one in first.parameters)
            continue
        yield _row(own, "", first.elements, first.bytes, "", depth)
        yield from _inside(first, depth + 1)


def _leaf(name: str, one: Parameter, depth: int) -> Row:
    return _row(name, size(one.shape), one.elements, one.bytes, one.kind or "", depth)


def _row(name: str, shape: str, elements: int, room: int | None, kind: str, depth: int) -> Row:
    line = "" if room is None else storage(room)
    return Row(("  " * depth + tame(name), shape, count(elements), line, kind), "" if shape else "strong")


def _groups(modules: Sequence[Module]) -> list[list[Module]]:
    """Modules in the order in which they stand; numbered ones that are alike stand together with the first of them."""
    found: dict[object, list[Module]] = {}
    for one in modules:
        found.setdefault(_face(one) if _numbered(one) else one.name, []).append(one)
    return list(found.values())


def _numbered(module: Module) -> bool:
    """Whether it is one of several in a list."""
    return module.name.rpartition(".")[2].isdecimal()


def _face(module: Module) -> tuple[tuple[str, tuple[int, ...], str | None], ...]:
    """What a module looks like from outside, whatever its name."""
    return tuple((one.name.removeprefix(module.name), one.shape, one.kind) for one in module.walk())


def _ranges(numbers: Sequence[int]) -> str:
    """
    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    line = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        held = [number for _, number in run]
        line.append(str(held[0]) if len(held) == 1 else f"{held[0]}–{held[-1]}")
    return ", ".join(line)


def listing(rows: Sequence[Parameter]) -> Table:
    """Every name with its shape, in the order in which the model uses them."""
    columns = (Column("name"), Column("shape"), SIZES[0], Column("kind", keep=8), Column("bytes", "number", keep=7))
    line = (Row((tame(one.name), size(one.shape), count(one.elements), one.kind or "", _room(one))) for one in rows)
    return Table(columns, tuple(line))


def _room(one: Parameter) -> str:
    return "" if one.bytes is None else storage(one.bytes)


# Numbers --------------------------------------------------------------------------------------------------------


LEGEND = f"spread: the standard deviation · far: more than {FAR} of them from the mean"


def statistics(rows: Sequence[Parameter], everything: bool) -> list[Part]:
    """Tensor by tensor; those of one block under its name."""
    pictures = any(one.statistics and one.statistics.histogram for one in rows)
    columns = (
        Column("name", least=24), Column("mean", "number"), Column("spread", "number"), Column("least", "number", keep=7),
        Column("most", "number", keep=7), Column("zeros", "number", keep=4), Column("far", "number", keep=5),
        *((Column("from least to most"),) if pictures else ()),
    )  # fmt: skip
    half = MOST // 2
    if everything or len(rows) <= MOST:
        line = [*_blocks(rows, pictures)]
    else:
        between = Row(_padded(f"… {len(rows) - 2 * half:,} more (--all)", pictures), "dim")
        line = [*_blocks(rows[:half], pictures), between, *_blocks(rows[-half:], pictures)]
    return [Table(columns, tuple(line)), Words(LEGEND, "dim")]


def _blocks(rows: Sequence[Parameter], pictures: bool) -> Iterator[Row]:
    for block, group in groupby(rows, lambda one: _block(one.name)):
        held = [*group]
        if not block or len(held) == 1:
            yield from (Row((_brief(one.name, rows), *_told(one, pictures))) for one in held)
            continue
        yield Row(_padded(tame(block), pictures), "strong")
        yield from (Row((f"  {tame(one.name.removeprefix(block + '.'))}", *_told(one, pictures))) for one in held)


def _block(name: str) -> str:
    """
    >>> _block("model.layers.12.mlp.up_proj.weight"), _block("model.norm.weight")
    ('model.layers.12', '')
    """
    found = re.match(r"(?:\D+\.)?\d+(?=\.)", name)
    return found[0] if found else ""


def _brief(name: str, rows: Sequence[Parameter]) -> Cell:
    """A name; where there is no room, and it is as the others but for its block, only that."""
    block = _block(name)
    ends = {one.name.removeprefix(_block(one.name)) for one in rows}
    if not block or len(ends) > 1:
        return tame(name)
    return Long(tame(name), tame(".".join(block.split(".")[-2:])))


def _padded(text: str, pictures: bool) -> tuple[str, ...]:
    return (text,) + ("",) * (7 if pictures else 6)


def _told(one: Parameter, pictures: bool) -> tuple[str, ...]:
    known = one.statistics
    assert known is not None, "of all, or of none"
    numbers = (number(known.mean), number(known.deviation), number(known.least), number(known.most))
    shares = (share(part) if part else "" for part in (known.zeros, known.outliers))
    return (*numbers, *shares, *((bars(known.histogram),) if pictures else ()))


def number(value: float | None) -> str:
    """
    >>> number(-0.00123456), number(12.5), number(None)
    ('-0.0012', '12.5', '')
    """
    return "" if value is None else f"{value:.2g}" if abs(value) < 1 else f"{value:,.3g}"


def bars(histogram: Histogram | None) -> str:
    """A bin's height is its count's, the highest being full; where there is any number, there is a bar.

    >>> bars(Histogram((0.0, 1.0, 2.0, 3.0, 4.0), (1, 100, 50, 0)))
    '▁█▄ '
    """
    if histogram is None:
        return ""
    most = max(*histogram.counts, 1)
    return "".join(BARS[max(0, -(-one * len(BARS) // most) - 1)] if one else " " for one in histogram.counts)


def unsound(rows: Sequence[Parameter]) -> list[Part]:
    """What is no number, in words: it makes everything that it touches none either."""
    parts: list[Part] = []
    for one in rows:
        known = one.statistics
        if known is not None and (known.nans or known.infinite):
            wrong = [f"{known.nans:,} not a number (NaN)"] * bool(known.nans) + [f"{known.infinite:,} infinite"] * bool(
                known.infinite
            )
            line = f"{tame(one.name)}: of {one.elements:,} values, {' and '.join(wrong)}. The statistics are of the others."
            parts.append(Words(line, "special"))
    return parts


# Beside ---------------------------------------------------------------------------------------------------------


def remarks(view: Parameters) -> Iterator[str]:
    """What a careful reader would ask."""
    for one in view.tied:
        again = f" The file holds it once more ({storage(one.bytes)})." if one.bytes else ""
        yield f"{tame(one.name)} is tied: it is {tame(one.same)}, and counted there.{again}"
    if view.unused:
        room = storage(sum(one.bytes or 0 for one in view.unused))
        yield f"in the file but not used, and not counted: {_some([one.name for one in view.unused])} ({room})"
    if view.missing:
        yield f"not in the file: {_some(view.missing)}"
    if view.family is None:
        yield "This is no family that is known here: every tensor of its files is counted."
    if otherwise := [one for one in view.flat if one.written]:
        line = f"the file calls {many(len(otherwise), 'tensor')} by other names"
        yield f"{line}: {tame(otherwise[0].name)} is {tame(otherwise[0].written or '')} there"


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(tame(name) for name in names[:most]) + more
