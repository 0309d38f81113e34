"""What can be done to a value inside a model: a `Change`, which is data, or a function of one's own.

A Change is what a native engine, another process, a request or a file can hold. A function is called with each value, and
an engine stops for it. Both work on numpy's arrays and on tensors, so every executor applies them by the same lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any, TypeAlias

import numpy as np

from glassformer.ground.arguments import checked_init
from glassformer.ground.errors import SiteError, needed_for
from glassformer.ground.typecheck import OWN_CHECK, brief

Indices: TypeAlias = Collection[int] | slice | None
_LARGEST = float(np.finfo(np.float32).max)
SiteFunction: TypeAlias = Callable[[Any, "Where"], Any]  # a tensor, and where it stands, to the one to go on with


@dataclass(frozen=True, slots=True)
class Where:
    """Where a value stands: its site with its axes, and which tokens of the text it belongs to."""

    site: str
    axes: tuple[str, ...]
    start: int = 0  # the position of its first token; texts may be read in chunks, and grow by a token a pass
    end: int | None = None  # how many tokens the text has with those of this pass; None: the value's are its last
    values: Mapping[str, Any] = field(default_factory=dict)  # those of the same tokens at the change's `inputs`, by site

    def tokens(self, value: Any) -> tuple[int, int, int]:
        """A value's axis of tokens, the position of the first, and how many the text has; of the source, in an encoder."""
        if "length" not in self.axes:
            axis = self.axes.index("source")
            return axis, 0, value.shape[axis]
        axis = self.axes.index("length")
        return axis, self.start, self.start + value.shape[axis] if self.end is None else self.end


@checked_init
@dataclass(frozen=True, slots=True)
class Change:
    """value · scale + shift, of what is selected: enough to zero, scale, replace, patch or steer; or projections, or bounds.

    `positions` count from the start of the text, cached tokens included; on the encoder's side, of the source. Negative ones
    count from the end of what each pass has read: -1 is the prompt's last token, and then every new one. Where a scale or a
    shift has a row for each of them, rows and positions go in the same order.
    """

    scale: Annotated[Any, OWN_CHECK] = 1.0  # a number, or an array that broadcasts to what is selected
    shift: Any = None  # the same
    positions: Annotated[Indices, OWN_CHECK] = None
    heads: Annotated[Indices, OWN_CHECK] = None
    neurons: Annotated[Indices, OWN_CHECK] = None  # indices into the last axis, whatever it holds
    onto: Any = None  # a direction: of each vector, its part along it is left
    away_from: Any = None  # a direction: of each vector, its part along it is taken away
    minimum: Annotated[float | None, OWN_CHECK] = None  # after all else
    maximum: Annotated[float | None, OWN_CHECK] = None

    def __post_init__(self) -> None:
        if isinstance(self.scale, (bool, str)) or not (isinstance(self.scale, Real) or hasattr(self.scale, "dtype")):
            raise SiteError(f"a Change's scale is a number or an array, not {self.scale!r}.")
        for name in ("positions", "heads", "neurons"):
            indices = getattr(self, name)
            if indices is None or isinstance(indices, slice):
                continue
            fits = isinstance(indices, Collection) and not isinstance(indices, (str, bytes))
            if not (fits and all(isinstance(n, int) and not isinstance(n, bool) for n in indices)):
                raise SiteError(f"a Change's {name} are whole numbers, such as {name}=[0, 3], or a slice, not {indices!r}.")
        for name in ("minimum", "maximum"):
            bound = getattr(self, name)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, Real)):
                raise SiteError(f"a Change's {name} is a number, not {bound!r}.")
        for name in ("scale", "minimum", "maximum"):
            if isinstance(number := getattr(self, name), Real) and not _in_float32(number):
                raise SiteError(f"a Change's {name} is a finite number that float32 has, not {brief(number)}.")
        if self.onto is not None and self.away_from is not None:
            raise SiteError("a Change projects onto a direction or away from one, not both.")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Sites before its own whose values of the same pass it is computed from; `where` has them when it is applied."""
        return ()

    @property
    def names_numbers(self) -> bool:
        """Whether it names numbers of the last axis by place: some of them, a direction, or one vector for all tokens."""
        vectors = any(getattr(array, "ndim", 0) == 1 and len(array) > 1 for array in (self.scale, self.shift))
        return vectors or any(which is not None for which in (self.neurons, self.onto, self.away_from))

    def apply(self, value: Any, where: Where) -> Any:
        """The changed copy of a value."""
        selection = self._select(value, where)
        if selection is None:
            return value
        index, rows = selection
        changed = value.clone() if hasattr(value, "clone") else value.copy()
        try:
            changed[index] = self._computed(changed[index], rows)
        except (IndexError, RuntimeError, ValueError) as error:
            shape = dict(zip(where.axes, value.shape, strict=True))
            hint = "" if self.shift is None or self.positions is not None else " Say at which positions its shift stands."
            raise SiteError(
                f"a Change does not fit what it changes, {shape}: {str(error).splitlines()[0]}.{hint}"
            ) from error
        return changed

    def _computed(self, selected: Any, rows: tuple[list[int], int]) -> Any:
        if (direction := self.onto if self.onto is not None else self.away_from) is not None:
            along = _component(selected, like(direction, selected))
            selected = along if self.onto is not None else selected - along
        selected = selected * like(_rows_here(self.scale, rows), selected)
        if self.shift is not None:
            selected = selected + like(_rows_here(self.shift, rows), selected)
        if self.minimum is not None or self.maximum is not None:
            selected = selected.clip(self.minimum, self.maximum)
        return selected

    def _select(self, value: Any, where: Where) -> tuple[tuple[Any, ...], tuple[list[int], int]] | None:
        """The index of what is changed, and which of the positions are in this value, of how many; None: nothing is."""
        chosen: dict[int, list[int]] = {}  # by axis
        rows: tuple[list[int], int] = ([], 0)
        if self.heads is not None and "heads" in where.axes:
            axis = where.axes.index("heads")
            chosen[axis] = _indices(self.heads, value.shape[axis], "head")
        if self.positions is not None:
            axis, start, end = where.tokens(value)
            order = _positions(self.positions, end)
            inside = [index for index, position in enumerate(order) if 0 <= position - start < value.shape[axis]]
            if not inside:
                return None
            chosen[axis], rows = [order[index] - start for index in inside], (inside, len(order))
        if self.neurons is not None:
            axis = len(where.axes) - 1
            chosen[axis] = _indices(self.neurons, value.shape[axis], "neuron")
        return _grid(chosen, value.shape), rows


@dataclass(frozen=True, slots=True)
class ComputedChange(Change):
    """A change that is more than a few numbers, so that no receipt holds it and no other process is sent it."""

    @property
    def label(self) -> str:
        """What it is, in a few words."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FunctionChange(ComputedChange):
    """A function of one's own, called with a copy of each value, as a tensor, and where it stands.

    It returns what the model goes on with; where it returns nothing, the copy is taken, as the function left it.
    """

    function: SiteFunction = field(default=lambda value, where: value)

    @property
    def label(self) -> str:
        return str(getattr(self.function, "__qualname__", brief(self.function)))

    def apply(self, value: Any, where: Where) -> Any:
        with needed_for("a function at a site"):
            import torch

        copy = value.clone() if isinstance(value, torch.Tensor) else torch.from_numpy(value.copy())
        try:
            result = self.function(copy, where)
        except Exception as error:
            raise SiteError(f"the function at {where.site!r} failed with {type(error).__name__}: {error}") from error
        result = copy if result is None else result
        if not isinstance(result, torch.Tensor) or result.shape != copy.shape:
            found = tuple(result.shape) if isinstance(result, torch.Tensor) else brief(result)
            raise SiteError(
                f"the function at {where.site!r} returned {found}; it must return a tensor of the shape that it was given, "
                f"{tuple(copy.shape)}."
            )
        if bool(result.isnan().any()):
            raise SiteError(f"the function at {where.site!r} returned values that are no numbers (NaN).")
        return result.to(copy) if isinstance(value, torch.Tensor) else result.detach().to(copy).numpy()


@dataclass(frozen=True, slots=True)
class ChangeSequence(Change):
    """Several changes of one site, each of what the one before it left."""

    changes: tuple[Change, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(site for change in self.changes for site in change.inputs)

    def apply(self, value: Any, where: Where) -> Any:
        for change in self.changes:
            value = change.apply(value, where)
        return value


def in_sequence(*changes: Change | None) -> Change:
    """Changes of one site as a single one; None stands for none."""
    parts = [part for change in changes for part in parts_of(change)]
    return parts[0] if len(parts) == 1 else ChangeSequence(changes=tuple(parts))


def parts_of(change: Change | None) -> tuple[Change, ...]:
    """What a change consists of: itself, or the changes of a sequence."""
    if change is None:
        return ()
    return change.changes if isinstance(change, ChangeSequence) else (change,)


def as_change(declared: Change | SiteFunction, site: str) -> Change:
    """A change, or a function in place of one."""
    if isinstance(declared, Change):
        return declared
    if callable(declared):
        return FunctionChange(function=declared)
    raise SiteError(
        f"the change at {site!r} is {declared!r}; it must be a Change, such as Change(scale=0), or a function of a value "
        "and where it stands."
    )


# Changes as data ----------------------------------------------------------------------------------------------------


def change_data(change: Change) -> dict[str, Any]:
    """A change as JSON has it: what is not the default. What is computed is only named: no file can hold it."""
    if isinstance(change, ChangeSequence):
        return {"sequence": [change_data(part) for part in change.changes]}
    if isinstance(change, ComputedChange):
        return {"function": change.label}
    data: dict[str, Any] = {}
    for name in ("scale", "shift", "onto", "away_from"):
        if (value := getattr(change, name)) is not None:
            data[name] = value if isinstance(value, (int, float)) else as_array(value).tolist()
    for name in ("positions", "heads", "neurons"):
        if (indices := getattr(change, name)) is not None:
            data[name] = _slice_data(indices) if isinstance(indices, slice) else _ordered(indices)
    return data | {name: bound for name in ("minimum", "maximum") if (bound := getattr(change, name)) is not None}


def change_from_data(data: Mapping[str, Any]) -> Change:
    """The change that such data describe; TypeError, ValueError or OverflowError where they are damaged."""
    if "sequence" in data:
        return ChangeSequence(changes=tuple(_plain_change(part) for part in data["sequence"]))
    return _plain_change(data)


def _plain_change(data: Mapping[str, Any]) -> Change:
    arrays: dict[str, Any] = {
        name: value if isinstance(value, (int, float)) else np.asarray(value, np.float32)
        for name in ("scale", "shift", "onto", "away_from")
        if (value := data.get(name)) is not None
    }
    indices: dict[str, Any] = {
        name: _slice_from_data(value["slice"]) if isinstance(value, Mapping) else value
        for name in ("positions", "heads", "neurons")
        if (value := data.get(name)) is not None
    }
    known = {"scale", "shift", "onto", "away_from", "positions", "heads", "neurons", "minimum", "maximum"}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"there is no {unknown[0]}")
    return Change(**arrays, **indices, minimum=data.get("minimum"), maximum=data.get("maximum"))


def _slice_data(indices: slice) -> dict[str, Any]:
    return {"slice": [indices.start, indices.stop, indices.step]}


def _slice_from_data(bounds: Any) -> slice:
    found = slice(*bounds)
    found.indices(1)  # refuses what is no whole number, and a step of 0
    return found


def as_array(value: Any) -> Any:
    """A tensor or anything like an array, as float32 numbers of numpy."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float32)


# Arrays of two libraries --------------------------------------------------------------------------------------------


def like(array: Any, value: Any) -> Any:
    """An array or a number, to compute with a value of another library, dtype or device."""
    if isinstance(array, Real):
        return array
    if isinstance(value, np.ndarray):
        return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array, value.dtype)
    return sys.modules["torch"].as_tensor(array).to(value)


def _component(vectors: Any, direction: Any) -> Any:
    """The part of each vector along a direction."""
    size = (direction * direction).sum()
    if not float(size) > 0:
        raise ValueError("its direction has no length")
    return (vectors @ direction)[..., None] * direction / size


def _rows_here(array: Any, rows: tuple[list[int], int]) -> Any:
    """Where an array has a row for each position, the rows of the positions that are here: a text may come in chunks."""
    inside, count = rows
    if len(inside) < count and getattr(array, "ndim", 0) > 1 and array.shape[-2] == count:
        return array[..., inside, :]
    return array


def _in_float32(number: Any) -> bool:
    """Whether a number is finite, in float32 too; NaN is not."""
    return bool(abs(number) <= _LARGEST)


# Which indices ------------------------------------------------------------------------------------------------------


def _grid(chosen: Mapping[int, Sequence[int]], shape: Sequence[int]) -> tuple[Any, ...]:
    """An index of all combinations, whose axes stay where they are: those between two chosen ones are spelled out."""
    index: list[Any] = [slice(None)] * len(shape)
    if chosen:
        first, last = min(chosen), max(chosen)
        for axis in range(first, last + 1):
            indices = np.array(chosen.get(axis, range(shape[axis])), np.int64)
            index[axis] = indices.reshape(-1, *[1] * (last - axis))
    return tuple(index)


def _indices(indices: Collection[int] | slice, count: int, word: str) -> list[int]:
    """Indices of heads or neurons, negative ones from the end; refused where there are none such."""
    if isinstance(indices, slice):
        return list(range(count))[indices]
    if wrong := [index for index in indices if not -count <= index < count]:
        raise SiteError(f"there is no {word} {wrong[0]} to change: there are {count}, 0 to {count - 1}.")
    return [index % count for index in _ordered(indices)]


def _positions(indices: Collection[int] | slice, end: int) -> list[int]:
    if isinstance(indices, slice):
        return list(range(*indices.indices(end)))
    return [index + end if index < 0 else index for index in _ordered(indices)]


def _ordered(indices: Collection[int]) -> list[int]:
    """In the caller's order; those of a set ascending."""
    return list(indices) if isinstance(indices, Sequence) else sorted(indices)
