"""Parameters: every tensor of a model with its shape, its kind and the room it takes, summed up module by module.

Only headers are read, and without weights a config is enough. What the numbers are like is read on request.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from glassformer.errors import InputError
from glassformer.observe import weights
from glassformer.observe.statistics import statistics
from glassformer.progress import NamedProgress
from glassformer.views.parameters import Kind, Module, Parameter, Parameters, Tied

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # of a block, in a name


def parameters(
    source: Any,
    *,
    only: str | None = None,
    stats: bool = False,
    histogram: bool = False,
    progress: NamedProgress | None = None,
) -> Parameters:
    """The parameters of a loaded model, of an opened checkpoint, or of a PyTorch model of ours.

    Args:
        only: a name, a module, or a pattern with wildcards such as '*.q_proj.weight'.
        stats: read the numbers, and tell their mean, deviation, extremes, zeros and outliers.
        histogram: count them in 21 bins too.
        progress: called as (tensor, numbers so far, numbers in all) while numbers are read.
    """
    held = weights.inventory(source)
    names = weights.match_names(held)
    found = {name: _parameter(name, held.tensors[written], written) for name, written in names.names.items()}
    if not held.tensors and held.blueprint is not None:
        found = {one.name: Parameter(one.name, one.shape, one.elements) for one in held.blueprint.weights}
    if only in names.tied:
        raise InputError(f"{only!r} is tied: it is {names.tied[only]!r}. Ask for that.")
    chosen = [found[name] for name in _chosen(only, found)]
    if stats or histogram:
        if not held.tensors:
            raise InputError(f"{held.name}: its weights are not here, and a config has no numbers to look at. Fetch them.")
        chosen = list(_looked_at(chosen, held.tensors, histogram, progress))
    return Parameters(
        model=held.name,
        family=None if held.blueprint is None else held.blueprint.model_type,
        tensors=len(found),
        elements=sum(one.elements for one in found.values()),
        bytes=_bytes(found.values()),
        kinds=_kinds(found.values()),
        tied=tuple(_tied(name, same, found, held) for name, same in names.tied.items() if same in found),
        unused=tuple(_parameter(name, held.tensors[name], name) for name in names.unused),
        missing=tuple(names.missing) if held.tensors else (),
        only=only,
        tree=_tree(chosen),
    )


def _parameter(name: str, one: Any, written: str) -> Parameter:
    elements = int(np.prod(one.shape, dtype=np.int64))
    bits = 8 * one.size / elements if elements else None
    return Parameter(name, tuple(one.shape), elements, one.kind, one.size, bits, None if written == name else written)


def _tied(name: str, same: str, found: Mapping[str, Parameter], held: weights.Inventory) -> Tied:
    one, twin = held.tensors.get(name), held.tensors.get(found[same].written or same)
    return Tied(name, same, None if one is None or one is twin else one.size)


# Sums -----------------------------------------------------------------------------------------------------------


def _kinds(found: Iterable[Parameter]) -> tuple[Kind, ...]:
    tensors, elements, sizes = Counter[str](), Counter[str](), Counter[str]()
    for one in found:
        if one.kind is not None and one.bytes is not None:
            tensors[one.kind] += 1
            elements[one.kind] += one.elements
            sizes[one.kind] += one.bytes
    return tuple(Kind(kind, tensors[kind], elements[kind], size) for kind, size in sizes.most_common())


def _bytes(found: Iterable[Parameter]) -> int | None:
    sizes = [one.bytes for one in found]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _tree(found: Sequence[Parameter], name: str = "", depth: int = 0) -> Module:
    """Modules by their dotted names, in the order of their first tensors."""
    own: list[Parameter] = []
    inside: dict[str, list[Parameter]] = {}
    for one in found:
        parts = one.name.split(".")
        if len(parts) == depth + 1:
            own.append(one)
        else:
            inside.setdefault(parts[depth], []).append(one)
    modules = tuple(_tree(group, f"{name}.{part}".lstrip("."), depth + 1) for part, group in inside.items())
    return Module(name, len(found), sum(one.elements for one in found), _bytes(found), tuple(own), modules)


# Choosing -------------------------------------------------------------------------------------------------------


def _chosen(only: str | None, names: Iterable[str]) -> list[str]:
    known = [*names]
    if only is None:
        return known
    found = [name for name in known if fnmatchcase(name, only) or name.startswith(f"{only}.")]
    if not found:
        raise InputError(f"no parameter is called {only!r}.{_like(only, known)}")
    return found


def _like(only: str, names: Sequence[str]) -> str:
    """The nearest patterns that would have found something; one that begins with a wildcard is held against names' ends."""
    forms = [NUMBER.sub("*", name).split(".") for name in names]
    _, star, end = only.rpartition("*.")
    wanted = end if star else NUMBER.sub("*", only.removesuffix(".*"))
    deep = wanted.count(".") + 1
    parts = dict.fromkeys(".".join(form[-deep:] if star else form[:deep]) for form in forms)
    near = difflib.get_close_matches(wanted, parts, n=2, cutoff=0.5) or [*parts][:2]
    return f" Near to it: {', '.join(repr(f'*.{part}' if star else part) for part in near)}."


# Numbers --------------------------------------------------------------------------------------------------------


def _looked_at(
    chosen: Sequence[Parameter], tensors: Mapping[str, Any], histogram: bool, progress: NamedProgress | None
) -> Iterator[Parameter]:
    so_far, total = 0, sum(one.elements for one in chosen)
    progress = progress or (lambda what, so_far, total: None)
    for one in chosen:
        progress(one.name, so_far, total)
        tensor = tensors[one.written or one.name]
        yield replace(one, statistics=statistics(partial(weights.pieces, tensor), histogram))
        tensor.release()
        so_far += one.elements
        progress(one.name, so_far, total)
