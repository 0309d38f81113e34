"""A model's tensors by the model's own names, wherever they come from, and what their numbers are like.

Names in files vary (with or without a base prefix, old names of norms, a tied table under any of its names); a blueprint
says which ones are meant, and in which order they are used. Only headers are read until numbers are requested.

Numbers come piece by piece, so that a large table is never in memory whole. Pieces are summed in float64 and joined as Chan,
Golub and LeVeque do it ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979), which loses
nothing where a mean is large and a spread is small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Weight, blueprint
from glassformer.checkpoint.legacy_names import modern_name
from glassformer.ground.errors import CheckpointError, ConfigError
from glassformer.ops.embed import Embed
from glassformer.ops.scores import Scores

if TYPE_CHECKING:
    from glassformer.checkpoint import StoredTensor

Numbers: TypeAlias = npt.NDArray[Any]
Pieces: TypeAlias = Callable[[], Iterable[Numbers]]  # from the beginning each time: numbers are read once or twice
BINS = 21
OUTLIER = 6  # standard deviations from the mean, beyond which a value is an outlier


@dataclass(frozen=True)
class Histogram:
    """How many values lie between each two edges, as numpy.histogram counts them."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Statistics:
    """Of a tensor's finite values; None where there are none."""

    mean: float | None
    deviation: float | None  # of a sample (n - 1), as torch has it; None for a single value
    min: float | None
    max: float | None
    zeros: float  # fraction of all values
    outliers: float  # fraction of all values further than OUTLIER standard deviations from the mean
    nans: int
    infinite: int
    histogram: Histogram | None = None


def statistics(pieces: Pieces, histogram: bool = False) -> Statistics:
    """Of numbers that come in pieces; they are read a second time only where something lies far out, or must be counted."""
    moments = RunningMoments()
    for piece in pieces():
        moments.add(piece.reshape(-1))
    total = moments.count + moments.nans + moments.infinite
    if not moments.count:
        return Statistics(None, None, None, None, 0.0, 0.0, moments.nans, moments.infinite)
    deviation = math.sqrt(moments.squares / (moments.count - 1)) if moments.count > 1 else None
    far = OUTLIER * (deviation or 0.0)
    reach = max(float(moments.maximum) - moments.mean, moments.mean - float(moments.minimum))
    outliers, bins = 0, None
    if histogram or (deviation and reach > far):
        edges, counts = _edges(moments), np.zeros(BINS, np.int64)
        for piece in pieces():
            flat = _finite(piece.reshape(-1))
            outliers += int((np.abs(flat.astype(np.float64) - moments.mean) > far).sum()) if deviation else 0
            if histogram:
                counts += np.histogram(flat, BINS, (moments.minimum, moments.maximum))[0]
        bins = Histogram(tuple(edges.tolist()), tuple(counts.tolist())) if histogram else None
    return Statistics(
        moments.mean, deviation, float(moments.minimum), float(moments.maximum), moments.zeros / total, outliers / total,
        moments.nans, moments.infinite, bins,
    )  # fmt: skip


class RunningMoments:
    """Of the pieces so far."""

    def __init__(self) -> None:
        self.count = self.zeros = self.nans = self.infinite = 0
        self.mean = self.squares = 0.0  # squares: summed distances from the mean, squared
        self.minimum: Any = None  # of the numbers' own type, for numpy's edges depend on it
        self.maximum: Any = None

    def add(self, flat: Numbers) -> None:
        finite = _finite(flat)
        if lost := flat.size - finite.size:
            nans = int(np.isnan(flat).sum())
            self.nans, self.infinite = self.nans + nans, self.infinite + lost - nans
        if not finite.size:
            return
        self.zeros += finite.size - int(np.count_nonzero(finite))
        minimum, maximum = finite.min(), finite.max()
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)
        wide = finite.astype(np.float64)
        mean = float(wide.mean())
        wide -= mean
        total, shift = self.count + finite.size, mean - self.mean
        self.squares += float(np.square(wide, out=wide).sum()) + shift**2 * self.count * finite.size / total
        self.mean += shift * finite.size / total
        self.count = total


def _finite(flat: Numbers) -> Numbers:
    if flat.dtype.kind != "f":
        return flat
    fine = np.isfinite(flat)
    return flat if fine.all() else flat[fine]


def _edges(moments: RunningMoments) -> Numbers:
    ends = np.array([moments.minimum, moments.maximum])
    return np.histogram_bin_edges(ends, BINS, (moments.minimum, moments.maximum))


PIECE = 1 << 20  # numbers that are read together
WIDE = {"F64": "<f8", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?"}
KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # torch's names for them


@dataclass(frozen=True)
class LoadedTensor:
    """A tensor in memory, with the attributes of a stored one."""

    kind: str
    shape: tuple[int, ...]
    tensor: Any

    @property
    def size(self) -> int:
        return int(self.tensor.numel() * self.tensor.element_size())

    def release(self) -> None:
        """Nothing: the model needs it."""


@dataclass(frozen=True)
class Inventory:
    """What a model should have, and what there is."""

    name: str
    blueprint: Blueprint | None  # None: of an unknown family
    tensors: Mapping[str, StoredTensor | LoadedTensor]  # empty: there are no weights


@dataclass
class NameMatch:
    """Which of the file's tensors is which of the model's."""

    names: dict[str, str] = field(default_factory=dict)  # from the model's names, in the order of use, to the file's
    tied: dict[str, str] = field(default_factory=dict)  # from a further name for a tensor to the model's
    unused: list[str] = field(default_factory=list)  # names in the file that the model has no use for
    missing: list[str] = field(default_factory=list)  # names of the model that the file does not have


def inventory(source: Any) -> Inventory:
    """Of a loaded model, an opened checkpoint, or a PyTorch model of ours."""
    source = getattr(source, "opened", source)
    if hasattr(source, "state_dict"):
        plan = blueprint(source.config, getattr(source, "head_kind", "base"))
        return Inventory(type(source).__name__, plan, _loaded_tensors(source, {weight.name for weight in plan.weights}))
    if not hasattr(source, "checkpoint"):
        return inventory(source.module)
    complete: bool = getattr(
        source.checkpoint, "complete", True
    )  # a folder may have a config, and no weights or half of them
    tensors: Mapping[str, StoredTensor] = source.tensors if complete else {}
    try:
        return Inventory(source.name, source.blueprint(), tensors)
    except (ConfigError, CheckpointError):
        if not tensors:
            raise
        return Inventory(source.name, None, tensors)


def _loaded_tensors(module: Any, expected: set[str]) -> dict[str, LoadedTensor]:
    """A module's parameters, and the buffers among the expected; shared tensors stay one."""
    names = expected | {name for name, _ in module.named_parameters(remove_duplicate=False)}
    by_address: dict[tuple[Any, ...], LoadedTensor] = {}
    tensors = {}
    for name, tensor in module.state_dict().items():
        if name in names:
            dtype = str(tensor.dtype).removeprefix("torch.")
            loaded = LoadedTensor(KINDS.get(dtype, dtype.upper()), tuple(tensor.shape), tensor)
            tensors[name] = by_address.setdefault((tensor.data_ptr(), loaded.shape), loaded)
    return tensors


# Names ----------------------------------------------------------------------------------------------------------


def match_names(inventory: Inventory) -> NameMatch:
    """Which tensor each name of the model means."""
    if inventory.blueprint is None:
        return _as_stored(inventory.tensors)
    match = NameMatch()
    current = {modern_name(name): name for name in inventory.tensors}
    shorter = {name.partition(".")[2]: stored for name, stored in current.items()}
    for weight in inventory.blueprint.weights:
        spellings = (current.get(weight.name), current.get(weight.name.partition(".")[2]), shorter.get(weight.name))
        match.names[weight.name] = next((name for name in spellings if name is not None), "")
    left = [name for name in inventory.tensors if name not in match.names.values()]
    tables = _tables(inventory.blueprint)
    for name in [name for name, stored in match.names.items() if not stored]:
        shape = tables[name].shape if name in tables else None  # a table may be stored under another of its names
        twin = next((free for free in left if inventory.tensors[free].shape == shape), None)
        if twin is None:
            match.names.pop(name)
            match.missing.append(name)
        else:
            match.names[name] = twin
            left.remove(twin)
    known = {id(inventory.tensors[stored]): name for name, stored in match.names.items()}
    shapes = {tables[name].shape: name for name in _shared(inventory.blueprint) if name in match.names}
    for name in left:
        same = known.get(id(inventory.tensors[name])) or shapes.get(inventory.tensors[name].shape)
        if same is None:
            match.unused.append(name)
        else:
            match.tied[name] = same
    match.tied |= {name: table for name, table in _heads(inventory.blueprint).items() if name not in match.tied}
    return match


def _as_stored(tensors: Mapping[str, StoredTensor | LoadedTensor]) -> NameMatch:
    match, known = NameMatch(), dict[int, str]()
    for name in sorted(tensors, key=_natural):
        same = known.setdefault(id(tensors[name]), name)
        (match.names if same == name else match.tied)[name] = same
    return match


def _tables(plan: Blueprint) -> dict[str, Weight]:
    return {op.weights[0].name: op.weights[0] for op in plan.ops_of(Embed)}


def _shared(plan: Blueprint) -> list[str]:
    """Tables that are used more than once: by both stacks of an encoder-decoder, or by a head."""
    uses = Counter(op.weights[0].name for op in plan.ops if op.weight_role == "table")
    return [name for name in _tables(plan) if uses[name] > 1]


def _heads(plan: Blueprint) -> dict[str, str]:
    """The name that a head's weight would have, if it had one of its own: the table that it uses."""
    used = {f"{op.module}.weight": op.weights[0].name for op in plan.ops_of(Scores)}
    return {name: table for name, table in used.items() if table in _tables(plan)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Block 10 comes after block 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


# Numbers --------------------------------------------------------------------------------------------------------


def pieces(tensor: StoredTensor | LoadedTensor) -> Iterator[Numbers]:
    """A tensor's numbers as the model has them, some rows at a time, in the order of the file.

    Some rows of a stored tensor are a stored tensor too. A matrix's layout only moves its numbers, so it is left out where
    their order does not matter; a layout that changes numbers is a vector's, and vectors are read whole.
    """
    if isinstance(tensor, LoadedTensor):
        for part in tensor.tensor.detach().reshape(-1).split(PIECE):
            yield (part.float() if tensor.kind in ("BF16", "F16") else part).cpu().numpy()
        return
    if tensor.kind in WIDE:
        numbers = tensor.bytes.view(WIDE[tensor.kind])
        yield from (numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE))
        return
    shape = tensor.shape if tensor.layout is None else tensor.layout.stored_shape(tensor.shape)
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    if len(shape) < 2 or not tensor.size:
        yield tensor.to_float32()
        return
    width, step = tensor.size // rows, max(1, PIECE // shape[-1])
    for start in range(0, rows, step):
        count = min(step, rows - start)
        offset = tensor.offset + start * width
        yield replace(tensor, shape=(count, shape[-1]), offset=offset, size=count * width, layout=None).to_float32()
