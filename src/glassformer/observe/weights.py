"""A model's tensors under the names that the model has for them, wherever they come from: files, memory, or a config alone.

Names have history (a base prefix that is there or not, old names of norms, a table under any of its names); a blueprint says
which ones are meant, and in which order they are used. Nothing but headers is read until somebody asks for numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.blueprints import Blueprint, Weight, blueprint
from glassformer.errors import CheckpointError, ConfigError
from glassformer.observe.statistics import Numbers

if TYPE_CHECKING:
    from glassformer.checkpoint import Stored

PIECE = 1 << 20  # numbers that are looked at together
WIDE = {"F64": "<f8", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?"}
KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # torch's names for them
OLD = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))  # what old files call a norm's


@dataclass(frozen=True)
class LoadedTensor:
    """A tensor in memory; to whoever counts it is as a stored one."""

    kind: str
    shape: tuple[int, ...]
    tensor: Any

    @property
    def size(self) -> int:
        return int(self.tensor.numel() * self.tensor.element_size())

    def release(self) -> None:
        """It is in use."""


@dataclass(frozen=True)
class Inventory:
    """What a model should have, and what there is."""

    name: str
    blueprint: Blueprint | None  # None: nobody knows what it is
    tensors: Mapping[str, Stored | LoadedTensor]  # empty: there are no weights


@dataclass
class NameMatch:
    """Whose tensor is whose."""

    names: dict[str, str] = field(default_factory=dict)  # the model's names, in the order of use: the file's
    tied: dict[str, str] = field(default_factory=dict)  # a further name for a tensor: the model's
    unused: list[str] = field(default_factory=list)  # names in the file that the model has no use for
    missing: list[str] = field(default_factory=list)  # names of the model that the file does not have


def inventory(source: Any) -> Inventory:
    """Of a loaded model, an opened checkpoint, or a PyTorch model of ours."""
    source = getattr(source, "opened", source)
    if hasattr(source, "state_dict"):
        plan = blueprint(source.config, getattr(source, "head", "base"))
        return Inventory(type(source).__name__, plan, _loaded_tensors(source, {one.name for one in plan.weights}))
    if not hasattr(source, "checkpoint"):
        return inventory(source.module)
    whole: bool = getattr(source.checkpoint, "whole", True)  # a folder may have a config, and no weights or half of them
    tensors: Mapping[str, Stored] = source.tensors if whole else {}
    try:
        return Inventory(source.name, source.blueprint(), tensors)
    except (ConfigError, CheckpointError):
        if not tensors:
            raise
        return Inventory(source.name, None, tensors)


def _loaded_tensors(module: Any, expected: set[str]) -> dict[str, LoadedTensor]:
    """A module's parameters, and what else it needs; what is shared stays one."""
    wanted = expected | {name for name, _ in module.named_parameters(remove_duplicate=False)}
    once: dict[tuple[Any, ...], LoadedTensor] = {}
    found = {}
    for name, tensor in module.state_dict().items():
        if name in wanted:
            dtype = str(tensor.dtype).removeprefix("torch.")
            made = LoadedTensor(KINDS.get(dtype, dtype.upper()), tuple(tensor.shape), tensor)
            found[name] = once.setdefault((tensor.data_ptr(), made.shape), made)
    return found


# Names ----------------------------------------------------------------------------------------------------------


def match_names(inventory: Inventory) -> NameMatch:
    """Which tensor each name of the model means."""
    if inventory.blueprint is None:
        return _as_written(inventory.tensors)
    found = NameMatch()
    modern = {_current_name(name): name for name in inventory.tensors}
    shorter = {name.partition(".")[2]: written for name, written in modern.items()}
    for one in inventory.blueprint.weights:
        spellings = (modern.get(one.name), modern.get(one.name.partition(".")[2]), shorter.get(one.name))
        found.names[one.name] = next((name for name in spellings if name is not None), "")
    left = [name for name in inventory.tensors if name not in found.names.values()]
    tables = _tables(inventory.blueprint)
    for name in [name for name, written in found.names.items() if not written]:
        shape = tables[name].shape if name in tables else None  # a table may be stored under another of its names
        twin = next((other for other in left if inventory.tensors[other].shape == shape), None)
        if twin is None:
            found.names.pop(name)
            found.missing.append(name)
        else:
            found.names[name] = twin
            left.remove(twin)
    own = {id(inventory.tensors[written]): name for name, written in found.names.items()}
    shapes = {tables[name].shape: name for name in _shared(inventory.blueprint) if name in found.names}
    for name in left:
        same = own.get(id(inventory.tensors[name])) or shapes.get(inventory.tensors[name].shape)
        if same is None:
            found.unused.append(name)
        else:
            found.tied[name] = same
    found.tied |= {name: table for name, table in _heads(inventory.blueprint).items() if name not in found.tied}
    return found


def _as_written(tensors: Mapping[str, Stored | LoadedTensor]) -> NameMatch:
    found, own = NameMatch(), dict[int, str]()
    for name in sorted(tensors, key=_natural):
        same = own.setdefault(id(tensors[name]), name)
        (found.names if same == name else found.tied)[name] = same
    return found


def _tables(plan: Blueprint) -> dict[str, Weight]:
    return {op.weights[0].name: op.weights[0] for op in plan.ops if op.kind == "embed"}


def _shared(plan: Blueprint) -> list[str]:
    """Tables that are used more than once: by both stacks of an encoder-decoder, or by a head."""
    uses = Counter(op.weights[0].name for op in plan.ops if op.kind in ("embed", "scores"))
    return [name for name in _tables(plan) if uses[name] > 1]


def _heads(plan: Blueprint) -> dict[str, str]:
    """The name that a head's weight would have, if it had one of its own: the table that it uses."""
    used = {f"{op.module}.weight": op.weights[0].name for op in plan.ops if op.kind == "scores"}
    return {name: table for name, table in used.items() if table in _tables(plan)}


def _current_name(name: str) -> str:
    for old, new in OLD:
        name = old.sub(new, name)
    return name


def _natural(name: str) -> list[tuple[int, str]]:
    """Block 10 comes after block 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


# Numbers --------------------------------------------------------------------------------------------------------


def pieces(one: Stored | LoadedTensor) -> Iterator[Numbers]:
    """A tensor's numbers as the model has them, some rows at a time, in the order of the file.

    Some rows of a stored tensor are a stored tensor too. A layout of a matrix only moves its numbers, so it may be left out
    where nobody asks for their order; one that changes numbers is a vector's, and vectors are taken whole.
    """
    if isinstance(one, LoadedTensor):
        for part in one.tensor.detach().reshape(-1).split(PIECE):
            yield (part.float() if one.kind in ("BF16", "F16") else part).cpu().numpy()
        return
    if one.kind in WIDE:
        numbers = one.bytes.view(WIDE[one.kind])
        yield from (numbers[at : at + PIECE] for at in range(0, len(numbers), PIECE))
        return
    shape = one.shape if one.layout is None else one.layout.stored(one.shape)
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    if len(shape) < 2 or not one.size:
        yield one.expand()
        return
    width, step = one.size // rows, max(1, PIECE // shape[-1])
    for at in range(0, rows, step):
        count = min(step, rows - at)
        place, room = one.offset + at * width, count * width
        yield replace(one, shape=(count, shape[-1]), offset=place, size=room, layout=None).expand()
