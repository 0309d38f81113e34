"""Parameters: every tensor of a model with its shape, its kind and its size, summed up module by module.

Only headers are read, and without weights a config is enough. What the numbers are like is read on request.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import numpy as np

from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import NamedProgress
from glassformer.page.document import Cell, Column, Page, PagePart, Paragraph, Shortenable, Style, Table, TableRow
from glassformer.page.format import abbreviate_list, format_bytes, format_count, format_percent, format_shape, pluralize
from glassformer.see import weights
from glassformer.see.view import View, flat_data
from glassformer.see.weights import OUTLIER, Histogram, Statistics, statistics

BARS = "▁▂▃▄▅▆▇█"
MAX_STATISTICS = 48  # tensors whose statistics are shown, unless everything is
HALF_BYTES = 2  # of a 16-bit number, as most models are published
SIZE_COLUMNS = (Column("parameters", "number"), Column("bytes", "number", priority=8), Column("kind", priority=8))
LEGEND = f"std: standard deviation · outliers: further than {OUTLIER} of them from the mean"


@dataclass(frozen=True)
class Parameter:
    """One tensor."""

    name: str  # in the model, with its module's
    shape: tuple[int, ...]
    elements: int
    kind: str | None = None  # F32, BF16, Q4_K, …; None without weights, as are the next two
    bytes: int | None = None
    bits: float | None = None  # per element
    written: str | None = None  # its name in the file, where that differs
    statistics: Statistics | None = None


@dataclass(frozen=True)
class ModuleNode:
    """A module: its own tensors, and the modules inside it."""

    name: str  # dotted; the whole model's is empty
    tensors: int  # its own and those inside
    elements: int
    bytes: int | None
    parameters: tuple[Parameter, ...]
    modules: tuple[ModuleNode, ...]

    def walk(self) -> Iterator[Parameter]:
        """Its own tensors and those inside."""
        yield from self.parameters
        for inner in self.modules:
            yield from inner.walk()


@dataclass(frozen=True)
class KindTotals:
    """The totals of all tensors that are stored as one kind."""

    kind: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class TiedParameter:
    """A second name for a parameter."""

    name: str
    same: str  # the name under which it is counted
    bytes: int | None  # of a second copy in the file; None: there is none


@dataclass(frozen=True)
class Parameters(View):
    """All weights of a model. The sums are of all of them; the tree holds those that were selected."""

    SCHEMA = "glassformer.parameters/2"

    model: str
    family: str | None  # its model_type; None: not a known family
    tensors: int
    elements: int
    bytes: int | None  # None: there are no weights
    kinds: tuple[KindTotals, ...]  # the one with most bytes first
    tied: tuple[TiedParameter, ...]
    unused: tuple[Parameter, ...]  # in the file, but not in the model
    missing: tuple[str, ...]  # not in the file
    only: str | None  # the pattern that selected the tree
    tree: ModuleNode

    @property
    def flat(self) -> tuple[Parameter, ...]:
        """The tensors of the tree as a list."""
        return tuple(self.tree.walk())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Their shapes by name, as in a state_dict."""
        return {tensor.name: tensor.shape for tensor in self.tree.walk()}

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each tensor."""
        return [flat_data(parameter) for parameter in self.tree.walk()]

    def page(self, everything: bool = False) -> Page:
        """Equal blocks once, and long lists without their middle, unless `everything` is shown."""
        selected = self.flat
        parts: list[PagePart] = [Paragraph(summary(self)), *kind_parts(self), Paragraph("")]
        if self.only is not None:
            line = f"{pluralize(len(selected), 'tensor')} with {self.tree.elements:,} parameters"
            parts.append(Paragraph(f"{self.only}: {line}", "strong"))
        if any(tensor.statistics for tensor in selected):
            parts += [*statistics_parts(selected, everything), *not_finite(selected)]
        elif everything or self.only is not None:
            parts.append(list_table(selected))
        else:
            parts.append(tree_table(self.tree))
        parts += [Paragraph(line, "dim") for line in notes(self)]
        return Page(f"{self.model}: {self.elements:,} parameters", tuple(parts))

    def __repr__(self) -> str:
        return f"Parameters({self.model!r}: {self.elements:,} in {self.tensors} tensors)"


def summary(view: Parameters) -> str:
    """The total number of parameters and their bytes."""
    family = f" ({view.family})" if view.family else ""
    line = f"{view.model}{family}: {view.elements:,} parameters in {pluralize(view.tensors, 'tensor')}"
    if view.bytes is None:
        return (
            f"{line}.\nThere are no weights here: the shapes are those of the config.\n"
            f"With 16 bits each they would take {format_bytes(view.elements * HALF_BYTES)}."
        )
    return f"{line}, {format_bytes(view.bytes)}"


def kind_parts(view: Parameters) -> list[PagePart]:
    if not view.kinds or view.bytes is None:
        return []
    columns = (Column("kind"), Column("tensors", "number"), Column("parameters", "number"), Column("bytes", "number"),
               Column("bits each", "number"))  # fmt: skip
    rows = [_kind_row(total.kind, total.tensors, total.elements, total.bytes) for total in view.kinds]
    if len(rows) > 1:
        rows.append(_kind_row("all", view.tensors, view.elements, view.bytes, "dim"))
    return [Paragraph(""), Table(columns, tuple(rows))]


def _kind_row(name: str, tensors: int, elements: int, size: int, style: Style = "") -> TableRow:
    return TableRow(
        (name, f"{tensors:,}", format_count(elements), format_bytes(size), f"{8 * size / max(elements, 1):.2f}"), style
    )


# The tree -------------------------------------------------------------------------------------------------------


def tree_table(root: ModuleNode) -> Table:
    return Table((Column("module", min_width=20), Column("shape"), *SIZE_COLUMNS), tuple(_module_rows(root, 0)))


def _module_rows(module: ModuleNode, depth: int) -> Iterator[TableRow]:
    """A module's tensors and modules; modules that differ in nothing but their number are shown once."""
    for tensor in module.parameters:
        yield _tensor_row(_last_part(tensor.name), tensor, depth)
    for group in _equal_modules(module.modules):
        first = group[0]
        label = first.name.removeprefix(f"{module.name}.") if module.name else first.name
        if _numbered(first):
            label = f"{_ranges([int(_last_part(inner.name)) for inner in group])}{', each' if len(group) > 1 else ''}"
        while not first.parameters and len(first.modules) == 1 and not _numbered(first.modules[0]):
            first = first.modules[0]  # a module that only holds another one shares its row
            label += f".{_last_part(first.name)}"
        if not first.modules and not _numbered(first):  # no row of its own: its tensors' rows name it
            yield from (_tensor_row(f"{label}.{_last_part(tensor.name)}", tensor, depth) for tensor in first.parameters)
            continue
        yield _row(label, "", first.elements, first.bytes, "", depth)
        yield from _module_rows(first, depth + 1)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _tensor_row(label: str, tensor: Parameter, depth: int) -> TableRow:
    return _row(label, format_shape(tensor.shape), tensor.elements, tensor.bytes, tensor.kind or "", depth)


def _row(label: str, shape: str, elements: int, size: int | None, kind: str, depth: int) -> TableRow:
    cells = ("  " * depth + label, shape, format_count(elements), format_bytes(size or 0), kind)
    return TableRow(cells, "" if shape else "strong")


def _equal_modules(modules: Sequence[ModuleNode]) -> list[list[ModuleNode]]:
    """Modules in their order, numbered ones grouped with the first that has the same tensors."""
    groups: dict[object, list[ModuleNode]] = {}
    for module in modules:
        groups.setdefault(_signature(module) if _numbered(module) else module.name, []).append(module)
    return list(groups.values())


def _numbered(module: ModuleNode) -> bool:
    """Whether it is one of several in a list."""
    return _last_part(module.name).isdecimal()


def _signature(module: ModuleNode) -> tuple[tuple[str, tuple[int, ...], str | None], ...]:
    """The tensors of a module, whatever its own name."""
    return tuple((tensor.name.removeprefix(module.name), tensor.shape, tensor.kind) for tensor in module.walk())


def _ranges(numbers: Sequence[int]) -> str:
    """
    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    ranges = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        ranges.append(str(members[0]) if len(members) == 1 else f"{members[0]}–{members[-1]}")
    return ", ".join(ranges)


def list_table(tensors: Sequence[Parameter]) -> Table:
    """Every name with its shape, in the order in which the model uses them."""
    return Table.of(
        tensors,
        (Column("name"), lambda tensor: tensor.name),
        (Column("shape"), lambda tensor: format_shape(tensor.shape)),
        (SIZE_COLUMNS[0], lambda tensor: format_count(tensor.elements)),
        (Column("kind", priority=8), lambda tensor: tensor.kind or ""),
        (Column("bytes", "number", priority=7), lambda tensor: format_bytes(tensor.bytes or 0)),
    )


# Statistics -----------------------------------------------------------------------------------------------------


def statistics_parts(tensors: Sequence[Parameter], everything: bool) -> list[PagePart]:
    """Tensor by tensor; those of one block under its name."""
    histograms = any(tensor.statistics and tensor.statistics.histogram for tensor in tensors)
    columns = (
        Column("name", min_width=24), Column("mean", "number"), Column("std", "number"), Column("min", "number", priority=7),
        Column("max", "number", priority=7), Column("zeros", "number", priority=4), Column("outliers", "number", priority=5),
        *((Column("histogram"),) if histograms else ()),
    )  # fmt: skip
    half = MAX_STATISTICS // 2
    if everything or len(tensors) <= MAX_STATISTICS:
        rows = [*_block_rows(tensors, histograms)]
    else:
        gap = TableRow(_label_row(f"… {len(tensors) - 2 * half:,} more (--all)", histograms), "dim")
        rows = [*_block_rows(tensors[:half], histograms), gap, *_block_rows(tensors[-half:], histograms)]
    return [Table(columns, tuple(rows)), Paragraph(LEGEND, "dim")]


def _block_rows(tensors: Sequence[Parameter], histograms: bool) -> Iterator[TableRow]:
    for block, group in groupby(tensors, lambda tensor: _block(tensor.name)):
        members = [*group]
        if not block or len(members) == 1:
            yield from (TableRow((_name(tensor.name, tensors), *_numbers(tensor, histograms))) for tensor in members)
            continue
        yield TableRow(_label_row(block, histograms), "strong")
        for tensor in members:
            label = f"  {tensor.name.removeprefix(block + '.')}"
            yield TableRow((label, *_numbers(tensor, histograms)))


def _block(name: str) -> str:
    """
    >>> _block("model.layers.12.mlp.up_proj.weight"), _block("model.norm.weight")
    ('model.layers.12', '')
    """
    match = re.match(r"(?:\D+\.)?\d+(?=\.)", name)
    return match[0] if match else ""


def _name(name: str, tensors: Sequence[Parameter]) -> Cell:
    """A name; if all names differ in their blocks only, its short form is the block."""
    block = _block(name)
    endings = {tensor.name.removeprefix(_block(tensor.name)) for tensor in tensors}
    if not block or len(endings) > 1:
        return name
    return Shortenable(name, ".".join(block.split(".")[-2:]))


def _label_row(text: str, histograms: bool) -> tuple[str, ...]:
    return (text,) + ("",) * (7 if histograms else 6)


def _numbers(tensor: Parameter, histograms: bool) -> tuple[str, ...]:
    statistics = tensor.statistics
    assert statistics is not None, "of all, or of none"
    numbers = map(format_number, (statistics.mean, statistics.deviation, statistics.min, statistics.max))
    fractions = (format_percent(value) if value else "" for value in (statistics.zeros, statistics.outliers))
    return (*numbers, *fractions, *((histogram_bars(statistics.histogram),) if histograms else ()))


def format_number(value: float | None) -> str:
    """
    >>> format_number(-0.00123456), format_number(12.5), format_number(None)
    ('-0.0012', '12.5', '')
    """
    return "" if value is None else f"{value:.2g}" if abs(value) < 1 else f"{value:,.3g}"


def histogram_bars(histogram: Histogram | None) -> str:
    """One bar for each bin, the fullest at full height; every bin that is not empty has a bar.

    >>> histogram_bars(Histogram((0.0, 1.0, 2.0, 3.0, 4.0), (1, 100, 50, 0)))
    '▁█▄ '
    """
    if histogram is None:
        return ""
    most = max(*histogram.counts, 1)
    return "".join(BARS[max(0, -(-count * len(BARS) // most) - 1)] if count else " " for count in histogram.counts)


def not_finite(tensors: Sequence[Parameter]) -> list[PagePart]:
    """A warning for each tensor with NaN or infinite values: they spoil everything that is computed from them."""
    parts: list[PagePart] = []
    for tensor in tensors:
        statistics = tensor.statistics
        if statistics is not None and (statistics.nans or statistics.infinite):
            counts = [f"{statistics.nans:,} not a number (NaN)"] * bool(statistics.nans)
            counts += [f"{statistics.infinite:,} infinite"] * bool(statistics.infinite)
            values = f"of {tensor.elements:,} values, {' and '.join(counts)}"
            parts.append(Paragraph(f"{tensor.name}: {values}. The statistics are of the others.", "special"))
    return parts


# Notes ----------------------------------------------------------------------------------------------------------


def notes(view: Parameters) -> Iterator[str]:
    """What is tied, unused, missing or named otherwise in the file."""
    for tied in view.tied:
        copy = f" The file holds it once more ({format_bytes(tied.bytes)})." if tied.bytes else ""
        yield f"{tied.name} is tied: it is {tied.same}, and counted there.{copy}"
    if view.unused:
        size = format_bytes(sum(tensor.bytes or 0 for tensor in view.unused))
        names = _names([tensor.name for tensor in view.unused])
        yield f"in the file but no part of the model, and not counted: {names} ({size})"
    if view.missing:
        yield f"not in the file: {_names(view.missing)}"
    if view.family is None:
        yield "This is not a known family: every tensor of its files is counted."
    if renamed := [tensor for tensor in view.flat if tensor.written]:
        first = f"{renamed[0].name} is {renamed[0].written or ''} there"
        yield f"the file calls {pluralize(len(renamed), 'tensor')} by other names: {first}"


def _names(names: Sequence[str]) -> str:
    return abbreviate_list(names)


NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # of a block, in a name


@operation(route="parameters", passes=False)
def parameters(
    model: Any,
    *,
    only: Annotated[str | None, about("A name, a module, or a pattern with wildcards such as '*.q_proj.weight'.")] = None,
    stats: Annotated[bool, about("Mean, deviation, extremes, zeros and outliers of each.")] = False,
    histogram: Annotated[bool, about("The same, with counts in 21 bins.")] = False,
    progress: NamedProgress | None = None,
) -> Parameters:
    """Show every tensor with its shape, kind and bytes, summed up by module; on request with statistics.

    Of a loaded model, an opened checkpoint, or a PyTorch model of ours. Only headers are read, unless numbers are asked for.
    `progress`: called as (tensor, numbers so far, total) then.
    """
    inventory = weights.inventory(model)
    match = weights.match_names(inventory)
    listed = {name: _parameter(name, inventory.tensors[stored], stored) for name, stored in match.names.items()}
    if not inventory.tensors and inventory.blueprint is not None:
        listed = {
            weight.name: Parameter(weight.name, weight.shape, weight.elements) for weight in inventory.blueprint.weights
        }
    if only in match.tied:
        raise InputError(f"{only!r} is tied: it is {match.tied[only]!r}. Ask for that.")
    chosen = [listed[name] for name in _select(only, listed)]
    if stats or histogram:
        if not inventory.tensors:
            raise InputError(
                f"{inventory.name}: its weights are not here, and a config has no numbers to look at. Fetch them."
            )
        chosen = list(_with_statistics(chosen, inventory.tensors, histogram, progress))
    return Parameters(
        model=model.name if hasattr(model, "opened") else inventory.name,
        family=None if inventory.blueprint is None else inventory.blueprint.model_type,
        tensors=len(listed),
        elements=sum(parameter.elements for parameter in listed.values()),
        bytes=_bytes(listed.values()),
        kinds=_kinds(listed.values()),
        tied=tuple(_tied(name, same, listed, inventory) for name, same in match.tied.items() if same in listed),
        unused=tuple(_parameter(name, inventory.tensors[name], name) for name in match.unused),
        missing=tuple(match.missing) if inventory.tensors else (),
        only=only,
        tree=_tree(chosen),
    )


def _parameter(name: str, tensor: Any, stored_name: str) -> Parameter:
    elements = int(np.prod(tensor.shape, dtype=np.int64))
    size = tensor.own_size if isinstance(tensor, StoredTensor) else tensor.size
    bits = 8 * size / elements if elements else None
    renamed = None if stored_name == name else stored_name
    return Parameter(name, tuple(tensor.shape), elements, tensor.kind, size, bits, renamed)


def _tied(name: str, same: str, listed: Mapping[str, Parameter], inventory: weights.Inventory) -> TiedParameter:
    copy, tensor = inventory.tensors.get(name), inventory.tensors.get(listed[same].written or same)
    return TiedParameter(name, same, None if copy is None or copy is tensor else copy.size)


# Sums -----------------------------------------------------------------------------------------------------------


def _kinds(listed: Iterable[Parameter]) -> tuple[KindTotals, ...]:
    tensors, elements, sizes = Counter[str](), Counter[str](), Counter[str]()
    for parameter in listed:
        if parameter.kind is not None and parameter.bytes is not None:
            tensors[parameter.kind] += 1
            elements[parameter.kind] += parameter.elements
            sizes[parameter.kind] += parameter.bytes
    return tuple(KindTotals(kind, tensors[kind], elements[kind], size) for kind, size in sizes.most_common())


def _bytes(listed: Iterable[Parameter]) -> int | None:
    sizes = [parameter.bytes for parameter in listed]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _tree(listed: Sequence[Parameter], name: str = "", depth: int = 0) -> ModuleNode:
    """Modules by their dotted names, in the order of their first tensors."""
    direct: list[Parameter] = []
    inside: dict[str, list[Parameter]] = {}
    for parameter in listed:
        parts = parameter.name.split(".")
        if len(parts) == depth + 1:
            direct.append(parameter)
        else:
            inside.setdefault(parts[depth], []).append(parameter)
    modules = tuple(_tree(group, f"{name}.{part}".lstrip("."), depth + 1) for part, group in inside.items())
    return ModuleNode(
        name, len(listed), sum(parameter.elements for parameter in listed), _bytes(listed), tuple(direct), modules
    )


# Selection ------------------------------------------------------------------------------------------------------


def _select(only: str | None, names: Iterable[str]) -> list[str]:
    known = [*names]
    if only is None:
        return known
    matches = [name for name in known if fnmatchcase(name, only) or name.startswith(f"{only}.")]
    if not matches:
        raise InputError(f"no parameter is called {only!r}.{_suggestion(only, known)}")
    return matches


def _suggestion(only: str, names: Sequence[str]) -> str:
    """The nearest patterns that match something; one that begins with a wildcard is compared with the ends of names."""
    forms = [NUMBER.sub("*", name).split(".") for name in names]
    _, star, end = only.rpartition("*.")
    pattern = end if star else NUMBER.sub("*", only.removesuffix(".*"))
    depth = pattern.count(".") + 1
    parts = dict.fromkeys(".".join(form[-depth:] if star else form[:depth]) for form in forms)
    near = difflib.get_close_matches(pattern, parts, n=2, cutoff=0.5) or [*parts][:2]
    return f" Did you mean: {', '.join(repr(f'*.{part}' if star else part) for part in near)}."


# Numbers --------------------------------------------------------------------------------------------------------


def _with_statistics(
    chosen: Sequence[Parameter], tensors: Mapping[str, Any], histogram: bool, progress: NamedProgress | None
) -> Iterator[Parameter]:
    so_far, total = 0, sum(parameter.elements for parameter in chosen)
    progress = progress or (lambda what, so_far, total: None)
    for parameter in chosen:
        progress(parameter.name, so_far, total)
        tensor = tensors[parameter.written or parameter.name]
        yield replace(parameter, statistics=statistics(partial(weights.pieces, tensor), histogram))
        tensor.release()
        so_far += parameter.elements
        progress(parameter.name, so_far, total)
