"""Sites: the places inside a model that can be looked at and changed, by name.

The vocabulary is closed and the same for every family and every executor, so that a view, an intervention or a
test written against one model holds for all. A site's axes are part of the vocabulary:

    batch · length (the tokens of this pass) · keys (the tokens attended to) · source (the encoder's tokens) · heads ·
    head_size · hidden · inner · experts · vocabulary

`Watch` says before a pass which sites are read and which are changed; captured graphs and native code cannot call
back, so this is plain data. `Tap` is the live side of it during one pass. When nobody watches there is no tap, and
each site costs one `is None`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any

from glassformer.arguments import checked_init
from glassformer.errors import SiteError, did_you_mean
from glassformer.typecheck import OWN_CHECK, brief

STREAM = ("batch", "length", "hidden")
HEADS = ("batch", "heads", "length", "head_size")
SOURCE_HEADS = ("batch", "heads", "source", "head_size")  # of the encoder's states

BEFORE: Mapping[str, tuple[str, ...]] = {
    "embedding": STREAM,  # what enters the first block: hidden_states[0]
}
SELF_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "attention.input": STREAM,  # the normed stream
    "attention.query": HEADS,  # after head norms and RoPE
    "attention.key": HEADS,  # of this pass's tokens, as the cache receives them
    "attention.value": HEADS,
    "attention.pattern": ("batch", "heads", "length", "keys"),  # attention weights, each row summing to one
    "attention.heads": HEADS,  # each head's output, before they are mixed
    "attention.update": STREAM,  # what attention adds to the stream
    "middle": STREAM,  # the stream after attention
}
CROSS_ATTENTION: Mapping[str, tuple[str, ...]] = {  # in the decoder of an encoder-decoder
    "cross.input": STREAM,
    "cross.query": HEADS,
    "cross.key": SOURCE_HEADS,  # of the encoder's states, computed once
    "cross.value": SOURCE_HEADS,
    "cross.pattern": ("batch", "heads", "length", "source"),
    "cross.heads": HEADS,
    "cross.update": STREAM,
    "crossed": STREAM,  # the stream after cross-attention
}
MLP: Mapping[str, tuple[str, ...]] = {
    "mlp.input": STREAM,
    "mlp.hidden": ("batch", "length", "inner"),  # the activated neurons; those of all chosen experts, side by side
    "mlp.update": STREAM,
    "residual": STREAM,  # the stream as it leaves the block: hidden_states[n + 1]
}
ROUTING: Mapping[str, tuple[str, ...]] = {  # in blocks whose MLP is a mixture of experts, before the neurons
    "mlp.router": ("batch", "length", "experts"),  # the router's scores: router logits
    "mlp.experts": ("batch", "length", "experts"),  # each expert's share of the token's update; 0: not chosen
}
AFTER: Mapping[str, tuple[str, ...]] = {
    "final": STREAM,  # after the last norm: last_hidden_state
    "scores": ("batch", "length", "vocabulary"),  # the head's output: logits
}
BLOCK = {**SELF_ATTENTION, **CROSS_ATTENTION, **MLP, **ROUTING}
ENCODER = "encoder."  # in front of the same names, for the blocks of an encoder-decoder's encoder


@cache
def all_sites(blocks: int, encoder: int = 0, routed: tuple[int, ...] = ()) -> tuple[str, ...]:
    """All sites of a model of so many blocks, in the order in which a pass meets them.

    `encoder` counts the blocks of an encoder-decoder's encoder; its decoder then has the sites of cross-attention too.
    `routed`: the numbers of the blocks that have experts.
    """
    plain = [*SELF_ATTENTION, *MLP]
    before = [*BEFORE, *(f"blocks.{n}.{name}" for n in range(encoder) for name in plain), "final"] if encoder else []
    attention = [*SELF_ATTENTION, *(CROSS_ATTENTION if encoder else ())]
    first, *rest = MLP
    own = [
        f"blocks.{n}.{name}" for n in range(blocks) for name in (*attention, first, *(ROUTING if n in routed else ()), *rest)
    ]
    return (*(ENCODER + name for name in before), *BEFORE, *own, *AFTER)


def axes(site: str) -> tuple[str, ...]:
    """The named axes of the value found at a site."""
    if site.startswith(ENCODER):
        inside = axes(site.removeprefix(ENCODER))
        return tuple({"length": "source", "keys": "source"}.get(axis, axis) for axis in inside)
    if site.startswith("blocks."):
        _, number, name = (*site.split(".", 2), "", "")[:3]
        if number.isdecimal() and name in BLOCK:
            return BLOCK[name]
    for table in (BEFORE, AFTER):
        if site in table:
            return table[site]
    raise SiteError(f"there is no site {site!r}.{did_you_mean(site, all_sites(1, 1, (0,)))}")


def expand(patterns: Iterable[str], blocks: int, encoder: int = 0, routed: tuple[int, ...] = ()) -> tuple[str, ...]:
    """Site names with wildcards (`blocks.*.residual`) to the sites they mean, in pass order."""
    known = all_sites(blocks, encoder, routed)
    names, matching = frozenset(known), set[str]()
    for pattern in patterns:
        matches = [pattern] if pattern in names else [site for site in known if fnmatchcase(site, pattern)]
        if not matches:
            short = [re.sub(r"blocks\.\d+", "blocks.*" if "*" in pattern else "blocks.N", site) for site in known]
            raise SiteError(
                f"no site matches {pattern!r} in a model of {blocks} blocks."
                f"{did_you_mean(pattern, short if '*' in pattern else known)} "
                f"Sites: {', '.join(dict.fromkeys(name.replace('*', 'N') for name in short))}."
            )
        matching.update(matches)
    return tuple(site for site in known if site in matching)


@checked_init
@dataclass(frozen=True, slots=True)
class Change:
    """value · scale + shift, at some positions and heads: enough to zero, scale, replace, patch or steer.

    An affine change is data, so a native engine or a captured graph can honour it as well as plain PyTorch.
    `positions` count from the start of the sequence, cached tokens included; on the encoder's side, of the source. Where a
    shift has a row for each of them, rows and positions go in the same order.
    """

    scale: Annotated[float, OWN_CHECK] = 1.0
    shift: Any = None  # an array that broadcasts to what is selected
    positions: Annotated[Collection[int] | None, OWN_CHECK] = None
    heads: Annotated[Collection[int] | None, OWN_CHECK] = None

    def __post_init__(self) -> None:
        if isinstance(self.scale, bool) or not isinstance(self.scale, (int, float)):
            raise SiteError(f"a Change's scale is a number, not {self.scale!r}.")
        for name in ("positions", "heads"):
            numbers = getattr(self, name)
            fits = isinstance(numbers, Collection) and not isinstance(numbers, (str, bytes))
            if numbers is not None and not (fits and all(isinstance(n, int) and n >= 0 for n in numbers)):
                raise SiteError(f"a Change's {name} are numbers from 0 on, such as {name}=[0, 3], not {numbers!r}.")

    def apply(self, value: Any, names: Sequence[str], start: int) -> Any:
        """The changed copy of one row's `value`, whose first token stands at position `start`."""
        index: list[Any] = [slice(None)] * len(names)
        if self.heads is not None and "heads" in names:
            count = value.shape[names.index("heads")]
            if wrong := [head for head in self.heads if head >= count]:
                raise SiteError(f"there is no head {wrong[0]} to change: there are {count}, 0 to {count - 1}.")
            index[names.index("heads")] = _ordered(self.heads)
        shift = self.shift
        if self.positions is not None:
            axis = names.index("length" if "length" in names else "source")
            start = start if "length" in names else 0
            order = _ordered(self.positions)
            inside = [number for number, position in enumerate(order) if 0 <= position - start < value.shape[axis]]
            if not inside:
                return value
            if len(inside) < len(order) and getattr(shift, "ndim", 0) > 1 and shift.shape[-2] == len(order):
                shift = shift[..., inside, :]  # a text may be fed in chunks: the rows of this one
            if isinstance(index[axis - 1], list):  # two lists would be paired up; make them a grid
                index[axis - 1] = [[head] for head in index[axis - 1]]
            index[axis] = [order[number] - start for number in inside]
        changed = value.clone() if hasattr(value, "clone") else value.copy()
        try:
            selected = changed[tuple(index)] * self.scale
            if hasattr(shift, "dtype") and hasattr(value, "new_tensor"):  # an array may change a tensor too
                shift = value.new_tensor(shift) if not hasattr(shift, "clone") else shift
            changed[tuple(index)] = selected if shift is None else selected + shift
        except (IndexError, RuntimeError, ValueError) as error:
            shape = dict(zip(names, value.shape, strict=True))
            where = "" if self.shift is None or self.positions is not None else " Say at which positions=… its shift stands."
            raise SiteError(
                f"a Change does not fit what it changes, {shape}: {str(error).splitlines()[0]}.{where}"
            ) from error
        return changed


def _ordered(numbers: Collection[int]) -> list[int]:
    """In the caller's order; those of a set ascending."""
    return list(numbers) if isinstance(numbers, Sequence) else sorted(numbers)


@checked_init
@dataclass(frozen=True, slots=True)
class Watch:
    """Sites to read and to change, declared before the pass."""

    reads: frozenset[str] = frozenset()
    changes: Mapping[str, Change] = field(default_factory=dict)

    @classmethod
    def of(
        cls, *patterns: str, blocks: int, encoder: int = 0, routed: tuple[int, ...] = (),
        changes: Mapping[str, Change] | None = None,
    ) -> Watch:  # fmt: skip
        """A watch from patterns, checked against a model of so many blocks."""
        return cls(frozenset(patterns), changes or {}).expanded(blocks, encoder, routed)

    @classmethod
    def parse(
        cls, declared: Watch | Mapping[str, Change] | str | Iterable[str], blocks: int, encoder: int = 0,
        routed: tuple[int, ...] = (),
    ) -> Watch:  # fmt: skip
        """A watch from its short forms: sites to read, or sites with their changes."""
        if isinstance(declared, Watch):
            return declared.expanded(blocks, encoder, routed)
        if not isinstance(declared, Iterable):
            raise SiteError(f"a watch names sites, as text or a list, or maps them to changes; it is not {declared!r}.")
        if isinstance(declared, Mapping):
            return cls.of(*declared, blocks=blocks, encoder=encoder, routed=routed, changes=declared)
        patterns = [declared] if isinstance(declared, str) else [*declared] if getattr(declared, "ndim", 1) else [declared]
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise SiteError(f"a watch names sites, such as 'blocks.3.residual'; it is not {brief(declared)}.")
        return cls.of(*patterns, blocks=blocks, encoder=encoder, routed=routed)

    def expanded(self, blocks: int, encoder: int = 0, routed: tuple[int, ...] = ()) -> Watch:
        """The same with its patterns expanded, refused if it names a site that a model of so many blocks lacks."""
        for site, change in self.changes.items():
            if not isinstance(change, Change):
                raise SiteError(f"the change at {site!r} is {change!r}; it must be a Change, such as Change(scale=0).")
        size = (blocks, encoder, routed)
        changed = {site: change for pattern, change in self.changes.items() for site in expand([pattern], *size)}
        for site, change in changed.items():
            if change.heads is not None and "heads" not in axes(site):
                raise SiteError(f"there are no heads at {site!r}, which has {', '.join(axes(site))}.")
        return Watch(frozenset(expand(self.reads, *size)), changed)


@dataclass(slots=True)
class Observer:
    """One watch of a pass: of the whole batch, or of one row."""

    watch: Watch
    row: int | None = None  # None: the whole batch
    start: int = 0  # the position of the row's first token in this pass
    length: int | None = None  # how many of the pass's tokens are the row's own (the rest is padding)
    keys: int | None = None
    source: int | None = None  # how many of the encoder's tokens are the row's own
    record: dict[str, Any] = field(default_factory=dict)

    def row_part(self, site: str, value: Any) -> Any:
        """This row's part of a batched value, with a batch axis of one."""
        if self.row is None:
            return value
        index: list[slice] = []
        for name in axes(site):
            if name == "batch":
                index.append(slice(self.row, self.row + 1))
            else:
                index.append(slice({"length": self.length, "keys": self.keys, "source": self.source}.get(name)))
        return value[tuple(index)]


class Tap:
    """The watches of one pass, live. Layers hand values to `apply` and go on with what it returns."""

    __slots__ = ("_changed", "_read", "observers")

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)
        self._read = frozenset().union(*(observer.watch.reads for observer in self.observers))
        self._changed = frozenset().union(*(observer.watch.changes for observer in self.observers))

    def wants(self, site: str) -> bool:
        """Whether this site is read or changed: checked before computing what only a watcher needs."""
        return site in self._read or site in self._changed

    def changes(self, site: str) -> bool:
        return site in self._changed

    def apply(self, site: str, value: Any) -> Any:
        """Apply the changes at a site, then record it for its readers; returns the value to go on with."""
        if site in self._changed:
            value = self._change(site, value)
        if site in self._read:
            for observer in self.observers:
                if site in observer.watch.reads:
                    observer.record[site] = observer.row_part(site, value)
        return value

    def _change(self, site: str, value: Any) -> Any:
        names = axes(site)
        for observer in self.observers:
            change = observer.watch.changes.get(site)
            if change is None:
                continue
            if observer.row is None:
                value = change.apply(value, names, observer.start)
            else:
                value = value.clone() if hasattr(value, "clone") else value.copy()
                own = observer.row_part(site, value)
                own[...] = change.apply(own, names, observer.start)
        return value
