"""Parameters: every tensor of a model with its shape, its kind and its size, summed up module by module.

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

from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.errors import InputError
from glassformer.ground.progress import NamedProgress
from glassformer.observe import weights
from glassformer.observe.statistics import statistics
from glassformer.views.parameters import KindTotals, ModuleNode, Parameter, Parameters, TiedParameter

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
        stats: read the numbers, for their mean, deviation, extremes, zeros and outliers.
        histogram: count them in 21 bins too.
        progress: called as (tensor, numbers so far, numbers in all) while numbers are read.
    """
    inventory = weights.inventory(source)
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
        model=inventory.name,
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
    own: list[Parameter] = []
    inside: dict[str, list[Parameter]] = {}
    for parameter in listed:
        parts = parameter.name.split(".")
        if len(parts) == depth + 1:
            own.append(parameter)
        else:
            inside.setdefault(parts[depth], []).append(parameter)
    modules = tuple(_tree(group, f"{name}.{part}".lstrip("."), depth + 1) for part, group in inside.items())
    return ModuleNode(
        name, len(listed), sum(parameter.elements for parameter in listed), _bytes(listed), tuple(own), modules
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
