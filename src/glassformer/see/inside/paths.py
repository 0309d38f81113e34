"""The levels of a model: its blocks, their parts, their operations, each with a path. All of it is read off the blueprint.

A path begins as the name of a site does, and goes on with numbers: see `see/inside/view.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from glassformer.blueprints import Blueprint, Op
from glassformer.ops.token_mixer import TokenMixer
from glassformer.see.inside.view import Crumb, LevelKind

GROUPS = {
    "attention": "attention",
    "recurrent": "recurrent layer",
    "cross": "cross-attention",
    "mlp": "MLP",
}  # the first words of sites
NAMES = {  # of sites inside a block or a part, where another word says more
    "middle": "stream after attention",
    "crossed": "stream after cross-attention",
    "residual": "stream after the block",
    "hidden": "neurons",
    "final": "last norm",
    "scores": "scores",
}


@dataclass(frozen=True)
class Place:
    """A level: operations of the blueprint, or one of them and numbers that say what of it."""

    kind: LevelKind
    path: str
    ops: tuple[int, ...]  # those inside it
    numbers: tuple[int, ...] = ()  # of a head, and of a key; or of one number of the result


@dataclass(frozen=True)
class LevelPaths:
    """Every level of one model, by path."""

    blueprint: Blueprint

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.blueprint.ops

    @cached_property
    def readers(self) -> Mapping[int, int]:
        """The first op that reads each op's result."""
        readers: dict[int, int] = {}
        for index, op in enumerate(self.ops):
            for source in op.inputs:
                readers.setdefault(source, index)
        return readers

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Of each op the part of its block that it belongs to, such as `blocks.3.attention`; '' if to none."""
        groups = [""] * len(self.ops)
        for index in reversed(range(len(self.ops))):
            op = self.ops[index]
            site = op.site or next(iter(op.inner_sites), None)
            reader = self.readers.get(index)
            if op.block is None:
                continue
            if site is not None:
                word = site.removeprefix(scope(op)).partition(".")
                groups[index] = scope(op) + word[0] if word[0] in GROUPS and word[2] else ""
            elif reader is not None and scope(self.ops[reader]) == scope(op):
                groups[index] = groups[reader]
        return tuple(groups)

    @cached_property
    def op_paths(self) -> tuple[str, ...]:
        """Of each op its path: its site; without one, by its module, or by the op that reads it."""
        paths: dict[int, str] = {}
        for index in reversed(range(len(self.ops))):
            op = self.ops[index]
            reader = self.readers.get(index)
            home = f"{self.groups[index]}." if self.groups[index] else scope(op)
            if op.read_site is not None:
                path = op.read_site
            elif op.weights:
                path = home + op.module.rpartition(".")[2]
            else:
                path = f"{home if reader is None else paths[reader] + '.'}{op.kind}"
            taken = paths.values()
            paths[index] = path if path not in taken else f"{path}-{op.kind}"
        return tuple(paths[index] for index in range(len(self.ops)))

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """Every level but those of single heads and numbers."""
        everything = tuple(range(len(self.ops)))
        places = {"": Place("model", "", everything)}
        for index, op in enumerate(self.ops):
            for kind, path in (
                ("block", scope(op).rstrip(".") if op.block is not None else ""),
                ("group", self.groups[index]),
            ):
                if path:
                    inside = places[path].ops if path in places else ()
                    places[path] = Place(kind, path, (*inside, index))  # type: ignore[arg-type]
        for index, path in enumerate(self.op_paths):
            places[path] = Place("operation", path, (index,))
            for alias in self.ops[index].inner_sites:
                places.setdefault(alias, places[path])
        return places

    def find(self, path: str, keys: int) -> Place:
        """The level of a path; of one that does not exist, the nearest that does. `keys`: how many tokens are looked at."""
        words = path.split(".") if path else []
        place, known = self.places[""], 0
        for end in range(1, len(words) + 1):
            if (inner := self.places.get(".".join(words[:end]))) is not None:
                place, known = inner, end
        if place.kind != "operation":
            return place
        op = self.ops[place.ops[0]]
        if not isinstance(op, TokenMixer) and not self.openable(place):
            return self.places[""]
        limits = self._limits(op, keys)
        numbers: list[int] = []
        for word, limit in zip(words[known:], limits, strict=False):
            if not (word.isascii() and word.isdecimal() and len(word) < 10 and int(word) < limit):
                break
            numbers.append(int(word))
        if isinstance(op, TokenMixer):
            return self.head(place.ops[0], numbers)
        return self.number(place.ops[0], numbers[0]) if numbers else place

    def head(self, op_index: int, numbers: list[int]) -> Place:
        """A head of an attention, or one of its scores; without numbers, the part that the attention belongs to."""
        path = ".".join([self.op_paths[op_index], *map(str, numbers)])
        if not numbers:
            return self.places[self.groups[op_index]]
        return Place("head" if len(numbers) == 1 else "score", path, (op_index,), tuple(numbers))

    def number(self, op_index: int, index: int) -> Place:
        return Place("number", f"{self.op_paths[op_index]}.{index}", (op_index,), (index,))

    def _limits(self, op: Op, keys: int) -> tuple[int, ...]:
        """How far the numbers behind an op's path may count."""
        return (op.head_shape[0], keys) if isinstance(op, TokenMixer) else (width(op),)

    # Around a level ---------------------------------------------------------------------------------------------

    def parent(self, place: Place) -> Place | None:
        if place.kind == "model":
            return None
        if place.kind in ("head", "score"):
            return self.head(place.ops[0], list(place.numbers[:-1]))
        if place.kind == "number":
            return self.places[self.op_paths[place.ops[0]]]
        op = self.ops[place.ops[0]]
        if place.kind == "operation" and self.groups[place.ops[0]]:
            return self.places[self.groups[place.ops[0]]]
        if place.kind != "block" and op.block is not None:
            return self.places[scope(op).rstrip(".")]
        return self.places[""]

    def crumbs(self, place: Place) -> tuple[Crumb, ...]:
        parent = self.parent(place)
        return (*(() if parent is None else self.crumbs(parent)), Crumb(place.path, self.label(place)))

    def label(self, place: Place) -> str:
        op = self.ops[place.ops[0]]
        side = "encoder " if op.stack else ""
        match place.kind:
            case "model":
                return "model"
            case "block":
                return f"{side}block {op.block}"
            case "group":
                return GROUPS[place.path.rpartition(".")[2]]
            case "head":
                return f"head {place.numbers[0]}"
            case "score":
                return "q·k"
            case "number":
                return f"number {place.numbers[0]}"  # until its values are known
            case _:
                return self.op_name(place.ops[0])

    def op_name(self, op_index: int) -> str:
        """What an op is called inside its part: its place in the path, and the module that it is."""
        op, path = self.ops[op_index], self.op_paths[op_index]
        home = f"{self.groups[op_index]}." if self.groups[op_index] else scope(op)
        name = path.removeprefix(home)
        name = NAMES.get(name, name if op.read_site or op.weights else op.kind)
        name = f"encoder {name}" if op.stack and op.block is None else name
        module = op.module_label
        return name if module in ("", name) or module.isdecimal() else f"{name} ({module})"

    def siblings(self, place: Place, keys: int) -> tuple[str | None, str | None]:
        """The paths of the levels before and after it: the next head, the next block, the next number."""
        if place.numbers:
            limit = self._limits(self.ops[place.ops[0]], keys)[len(place.numbers) - 1]
            *outer, last = place.numbers
            stem = ".".join([self.op_paths[place.ops[0]], *map(str, outer)])
            return f"{stem}.{last - 1}" if last else None, f"{stem}.{last + 1}" if last + 1 < limit else None
        parent = self.parent(place)
        if parent is None:
            return None, None
        beside = [inner.path for inner in self.inner(parent) if self.openable(inner)]
        index = beside.index(place.path)
        return beside[index - 1] if index else None, beside[index + 1] if index + 1 < len(beside) else None

    def inner(self, place: Place) -> list[Place]:
        """The levels directly inside a model, a block or a part of one."""
        paths = dict.fromkeys(self._inner_path(place, op_index) for op_index in place.ops)
        return [self.places[path] for path in paths]

    def openable(self, place: Place) -> bool:
        """Whether it is a level: an attention is opened by its heads, and biases by distance are no values of a token."""
        op = self.ops[place.ops[0]]
        return place.kind != "operation" or (not isinstance(op, TokenMixer) and op.has_value_at_token)

    def _inner_path(self, place: Place, op_index: int) -> str:
        op = self.ops[op_index]
        if place.kind == "model" and op.block is not None:
            return scope(op).rstrip(".")
        return self.groups[op_index] if place.kind == "block" and self.groups[op_index] else self.op_paths[op_index]

    def parameters(self, ops: Iterable[int]) -> int:
        weights = {weight.name: weight.elements for op_index in ops for weight in self.ops[op_index].weights}
        return sum(weights.values())


def scope(op: Op) -> str:
    """What the names of an op's sites begin with."""
    return op.stack + (f"blocks.{op.block}." if op.block is not None else "")


def width(op: Op) -> int:
    """How many numbers an op's result has for each token."""
    return math.prod(op.head_shape) if len(op.shape) == 4 else op.width
