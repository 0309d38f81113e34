"""Steps of PyTorch's modules: what a container does with its parts, one after another.

A step is a function of a container, its values by slot, and the pass; it reads some slots and writes one. An op gives a
function whose last arguments are these, and the slots before them; what comes first is bound when the op writes its modules,
the slots when its container's plan is made. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

Values: TypeAlias = list[Any]  # by slot
Step: TypeAlias = Callable[[Any, Values, Any], None]
Path: TypeAlias = tuple[str, ...]


class At(NamedTuple):
    """The path of a module from the model on."""

    path: Path


class Unbound(NamedTuple):
    """A step before it is known which container runs it, and in which slots its values are."""

    function: Any
    constants: tuple[Any, ...] = ()

    def bind(self, container: Path, slots: Iterable[int]) -> Step:
        return partial(self.function, *(_seen_from(container, value) for value in self.constants), *slots)


def _seen_from(container: Path, value: Any) -> Any:
    if isinstance(value, At):
        return value.path[len(container) :]
    return tuple(_seen_from(container, item) for item in value) if isinstance(value, tuple) else value


def step(function: Any, *constants: Any) -> Unbound:
    return Unbound(function, constants)


def path_of(name: str) -> Path:
    return tuple(name.split(".")) if name else ()


def below(path: Path, home: Path) -> bool:
    return path[: len(home)] == home


def part(module: Any, path: Path) -> Any:
    """A part of a module, as it is now: adapters and packed layers take the place of others."""
    for name in path:
        module = module._modules[name]
    return module


def call(path: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    for name in path:
        m = m._modules[name]
    values[write] = m(values[read])


def scale(factor: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] * factor
