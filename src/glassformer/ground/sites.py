"""Sites: the places inside a model that can be looked at and changed, by name.

The vocabulary is closed and the same for every family and every executor, so that a view, an intervention or a
test written against one model holds for all. A site's axes are part of the vocabulary:

    batch · length (the tokens of this pass) · keys (the tokens attended to) · source (the encoder's tokens) · heads ·
    head_size · key_size · hidden · inner · experts · vocabulary

`Watch` says before a pass which sites are read and which are changed, and how (`changes.py`). `Tap` is the live side of it
during one pass. When nobody watches there is no tap, and each site costs one `is None`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeAlias

from glassformer.ground.arguments import checked_init
from glassformer.ground.changes import Change, SiteFunction, Where, as_change, parts_of
from glassformer.ground.errors import SiteError, did_you_mean
from glassformer.ground.typecheck import brief

SiteName: TypeAlias = str | tuple[str, int]  # a name or a pattern, or a short name and the index of a block

HEAD_INPUT = "embedding"  # of a head for further tokens: where the states stand that it goes on from
STREAM = ("batch", "length", "hidden")
HEADS = ("batch", "heads", "length", "head_size")
SOURCE_HEADS = ("batch", "heads", "source", "head_size")  # of the encoder's states

BEFORE: Mapping[str, tuple[str, ...]] = {
    "embedding": STREAM,  # what enters the first block: hidden_states[0]
}
SELF_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "attention.input": STREAM,  # the normed stream
    "attention.query": HEADS,  # after head norms and RoPE
    "attention.latent": HEADS,  # of latent attention: what all heads' keys and values are made of, as the cache receives it
    "attention.shared_key": HEADS,  # the part that is in all heads' keys, after RoPE, as the cache receives it
    "attention.key": HEADS,  # of this pass's tokens, as the cache receives them
    "attention.value": HEADS,
    "attention.decay": ("batch", "length", "heads"),  # of a recurrent layer: what of its state each token keeps
    "attention.row_decay": ("batch", "length", "inner"),  # the same, where each row of a head's state has its own
    "attention.write": ("batch", "length", "heads"),  # how strongly each token is written to it
    "attention.pattern": ("batch", "heads", "length", "keys"),  # sums to one, less a sink's part; of a state: to anything
    "attention.state_norm": ("batch", "length", "heads"),  # how long the state's numbers are, as a vector, after each token
    "attention.state": ("batch", "heads", "key_size", "head_size"),  # after the last token of the pass
    "attention.heads": HEADS,  # each head's output, before they are mixed
    "attention.update": STREAM,  # what attention adds to the stream
    "middle": STREAM,  # the stream after attention
}
RECURRENT: Mapping[str, tuple[str, ...]] = {  # heads that keep a state beside attention, in one and the same block
    f"recurrent.{name.removeprefix('attention.')}": SELF_ATTENTION[name]
    for name in (
        "attention.input", "attention.query", "attention.key", "attention.value", "attention.decay", "attention.write",
        "attention.pattern", "attention.state_norm", "attention.state", "attention.heads", "attention.update",
    )
}  # fmt: skip
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
    "mlp.router": ("batch", "length", "experts"),  # of a mixture of experts: the router's scores, or router logits
    "mlp.experts": ("batch", "length", "experts"),  # each expert's share of the token's update; 0: not chosen
    "mlp.hidden": ("batch", "length", "inner"),  # the activated neurons; those of all chosen experts, side by side
    "mlp.update": STREAM,
    "residual": STREAM,  # the stream as it leaves the block: hidden_states[n + 1]
}
AFTER: Mapping[str, tuple[str, ...]] = {
    "final": STREAM,  # after the last norm: last_hidden_state
    "scores": ("batch", "length", "vocabulary"),  # the head's output: logits
}
MEASURED = ".state_norm"  # how the sites end that can only be read
BLOCK = {**RECURRENT, **SELF_ATTENTION, **CROSS_ATTENTION, **MLP}
MODULE = "module:"  # in front of the name of a PyTorch module: what it gives, (batch, length, and all else as one axis)
MODULE_AXES = ("batch", "length", "inner")
EVERY_NAME = (*BEFORE, *(f"blocks.0.{part}" for part in BLOCK), *AFTER)
ENCODER = "encoder."  # in front of the same names, for the blocks of an encoder-decoder's encoder


@dataclass(frozen=True, slots=True)
class Synonyms:
    """What other libraries call the sites of a model, and why some of their names have no site."""

    sites: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)  # a name to a sentence


ORDER = {name: place for place, name in enumerate((*BEFORE, *BLOCK, *AFTER))}


def _place(site: str) -> tuple[bool, float, int]:
    """Where a pass meets a site: an encoder's before all of a decoder's, and those of a block together."""
    name = site.removeprefix(ENCODER)
    _, block, part = name.split(".", 2) if name.startswith("blocks.") else ("", 0, name)
    step = -1 if part in BEFORE else math.inf if part in AFTER else int(block)
    return name == site, step, ORDER[part]


@dataclass(frozen=True)
class ModelSites:
    """The sites of one model, in the order in which a pass meets them, and what else they are called."""

    names: tuple[str, ...]
    blocks: int
    slots: frozenset[str] = frozenset()  # whose numbers are one expert's at one token, and another's at the next
    synonyms: Callable[[], Synonyms] = field(default_factory=lambda: Synonyms)
    modules: Callable[[], Mapping[str, str]] = field(default_factory=lambda: dict)  # "module:" and its name to its site
    derived: frozenset[str] = frozenset()  # that are made anew of remembered latents, so that a change would not last

    @classmethod
    def of(
        cls, names: Iterable[str], blocks: int, slots: Iterable[str] = (),
        synonyms: Callable[[], Synonyms] | None = None, modules: Callable[[], Mapping[str, str]] | None = None,
        derived: Iterable[str] = (),
    ) -> ModelSites:  # fmt: skip
        """Those with these names, in whatever order they come."""
        ordered = tuple(sorted(names, key=_place))
        return cls(ordered, blocks, frozenset(slots), synonyms or Synonyms, modules or dict, frozenset(derived))

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Each site's place among all of them."""
        return {site: place for place, site in enumerate(self.names)}

    @property
    def has_encoder(self) -> bool:
        """Whether they are those of two stacks."""
        return any(name.startswith(ENCODER) for name in self.names[:1])

    def expand(self, patterns: Iterable[SiteName]) -> tuple[str, ...]:
        """Site names with wildcards (`blocks.*.residual`) to the sites they mean, in pass order.

        What is no name of ours may be one of other libraries': `synonyms` is called for these alone. Modules are named so:
        `module:model.layers.3.mlp`.
        """
        order, matching, modules = self.order, set[str](), dict[str, None]()
        for pattern in map(_as_pattern, patterns):
            if is_module(pattern):
                modules |= dict.fromkeys(self._modules(pattern))
                continue
            matches = [pattern] if pattern in order else [site for site in order if fnmatchcase(site, pattern)]
            if not matches:
                others = self.synonyms()
                matches = [site for name, site in others.sites.items() if fnmatchcase(name, pattern)]
            if not matches:
                raise SiteError(_unknown(pattern, self.names, self.blocks, others))
            matching.update(matches)
        return (*sorted(matching, key=order.__getitem__), *modules)

    def _modules(self, pattern: str) -> list[str]:
        """The sites of the modules that a pattern means, after all others: a pass meets them where it calls them."""
        modules = self.modules()
        known = {**{site: site for site in modules.values()}, **modules}
        matches = [known[pattern]] if pattern in known else [s for name, s in known.items() if fnmatchcase(name, pattern)]
        if not matches:
            raise SiteError(
                f"no module matches {pattern!r}.{did_you_mean(pattern, known)} print(model.module) shows their names."
            )
        return matches

    def check_numbered(self, site: str) -> None:
        """Refuse a site whose numbers are slots, where one is needed whose numbers mean the same at every token."""
        if site in self.slots:
            block = site.removesuffix(".mlp.hidden")
            raise SiteError(
                f"{site!r} has the neurons of each token's chosen experts side by side, so that a number there is one "
                f"expert's neuron at one token and another's at the next. Take '{block}.mlp.update', or "
                f"'{block}.mlp.experts' for whole experts."
            )


def is_module(site: str) -> bool:
    """Whether a site is what a PyTorch module gives, by the module's own name."""
    return site.removeprefix(ENCODER).startswith(MODULE)


def module_of(site: str) -> str:
    """The name of a site's module."""
    return site.removeprefix(ENCODER).removeprefix(MODULE)


def module_sites(names: Iterable[str], in_encoder: Callable[[str], bool]) -> dict[str, str]:
    """The sites of modules, by `module:` and their names; `encoder.` stands before those of an encoder-decoder's encoder."""
    return {f"{MODULE}{name}": f"{ENCODER if in_encoder(name) else ''}{MODULE}{name}" for name in names if name}


def axes(site: str) -> tuple[str, ...]:
    """The named axes of the value found at a site."""
    if site.startswith(ENCODER):
        inside = axes(site.removeprefix(ENCODER))
        return tuple({"length": "source", "keys": "source"}.get(axis, axis) for axis in inside)
    if site.startswith(MODULE):
        return MODULE_AXES
    if site.startswith("blocks."):
        _, block, name = (*site.split(".", 2), "", "")[:3]
        if block.isdecimal() and name in BLOCK:
            return BLOCK[name]
    for table in (BEFORE, AFTER):
        if site in table:
            return table[site]
    raise SiteError(f"there is no site {site!r}.{did_you_mean(site, EVERY_NAME)}")


def where_of(site: str, start: int, end: int | None = None, values: Mapping[str, Any] | None = None) -> Where:
    """Where a value of a site stands, for those who change it."""
    return Where(site, axes(site), start, end, values or {})


def _is_name(name: object) -> bool:
    return isinstance(name, str) or (isinstance(name, tuple) and list(map(type, name)) == [str, int])


def _as_pattern(name: SiteName) -> str:
    """`("resid_pre", 3)`, as TransformerLens' caches are indexed, is `resid_pre.3`."""
    return name if isinstance(name, str) else f"{name[0]}.{name[1]}"


def _unknown(pattern: str, known: Sequence[str], blocks: int, others: Synonyms) -> str:
    for name, reason in others.absent.items():
        if fnmatchcase(name, pattern):
            return f"TransformerLens' {pattern!r} has no counterpart: {reason}"
    wild = "*" in pattern
    mine, theirs = (_without_numbers(names, "*" if wild else "N") for names in (known, others.sites))
    names = [*mine, *theirs] if wild else [*known, *others.sites]
    alike = [name for name in names if name.rpartition(".")[2] == pattern.rpartition(".")[2]]  # what is asked for, elsewhere
    return (
        f"no site matches {pattern!r} in a model of {blocks} blocks."
        f"{did_you_mean(pattern, alike) or did_you_mean(pattern, names)} "
        f"Sites: {', '.join(name.replace('*', 'N') for name in mine)}."
    )


def _without_numbers(names: Iterable[str], hole: str) -> list[str]:
    return list(dict.fromkeys(re.sub(r"(?<=\.)\d+", hole, name) for name in names))


@checked_init
@dataclass(frozen=True, slots=True)
class Watch:
    """Sites to read and to change, declared before the pass."""

    reads: frozenset[str] = frozenset()
    changes: Mapping[str, Change] = field(default_factory=dict)  # functions in their place become changes when expanded
    recompute: bool = False  # for gradients: blocks keep no activations, and are computed again on the way back

    @property
    def inputs(self) -> frozenset[str]:
        """The sites that its changes are computed from."""
        return frozenset(site for change in self.changes.values() for site in change.inputs)

    @classmethod
    def of(cls, *patterns: SiteName, names: ModelSites, changes: Mapping[Any, Change | SiteFunction] | None = None) -> Watch:
        """A watch from patterns, checked against the sites that a model has."""
        declared = {_as_pattern(name): as_change(change, _as_pattern(name)) for name, change in (changes or {}).items()}
        return cls(frozenset(map(_as_pattern, patterns)), declared).expanded(names)

    @classmethod
    def parse(
        cls, declared: Watch | Mapping[Any, Change | SiteFunction] | SiteName | Iterable[SiteName], names: ModelSites
    ) -> Watch:
        """A watch from its short forms: sites to read, or sites with their changes."""
        if isinstance(declared, Watch):
            return declared.expanded(names)
        if not isinstance(declared, Iterable):
            raise SiteError(f"a watch names sites, as text or a list, or maps them to changes; it is not {declared!r}.")
        if _is_name(declared):
            patterns: list[Any] = [declared]
        else:
            patterns = [*declared] if getattr(declared, "ndim", 1) else [declared]
        if not all(map(_is_name, patterns)):
            raise SiteError(f"a watch names sites, such as 'blocks.3.residual'; it is not {brief(declared)}.")
        changes = declared if isinstance(declared, Mapping) else None
        return cls.of(*patterns, names=names, changes=changes)

    def expanded(self, names: ModelSites) -> Watch:
        """The watch with its patterns expanded, refused if it names a site that the model lacks."""
        changed = {
            site: as_change(change, pattern) for pattern, change in self.changes.items() for site in names.expand([pattern])
        }
        for site, change in changed.items():
            if site.endswith(MEASURED):
                state = site.removesuffix("_norm")
                raise SiteError(f"{site!r} is measured, and nothing is computed from it. Change {state!r}.")
            if site in names.derived:
                latent = site.rpartition(".")[0]
                raise SiteError(
                    f"{site!r} can be read, but not changed: later tokens make it again of what is remembered. Change "
                    f"'{latent}.latent' or '{latent}.shared_key', which are, or '{latent}.pattern'."
                )
            if change.heads is not None and "heads" not in axes(site):
                raise SiteError(f"there are no heads at {site!r}, which has {', '.join(axes(site))}.")
            if any(part.names_numbers for part in parts_of(change)):
                names.check_numbered(site)
            for name in names.expand(change.inputs):
                _check_input(name, site, names.order)
        return Watch(frozenset(names.expand(self.reads)), changed, self.recompute)


def _check_input(name: str, site: str, order: Mapping[str, int]) -> None:
    """Refuse to compute a change from a value that is not there yet, or belongs to other tokens."""
    if is_module(name) or is_module(site):
        raise SiteError(
            f"what is changed at {site!r} is computed from {name!r}, and which comes first is not known of a module. "
            "Take two sites of the model's own, such as 'blocks.3.residual'."
        )
    other_tokens = name.startswith(ENCODER) != site.startswith(ENCODER) or _is_of_source(name) or _is_of_source(site)
    if order[name] >= order[site] or other_tokens or site == "scores":
        raise SiteError(
            f"what is changed at {site!r} is computed from {name!r}, which does not come before it in a pass over the same "
            "tokens. Compute it from an earlier site, or change a later one."
        )


def _is_of_source(site: str) -> bool:
    """Whether a decoder's site has numbers for the encoder's tokens."""
    return not site.startswith(ENCODER) and "source" in axes(site) and "length" not in axes(site)


def expand_changes(changes: Mapping[str, Change | SiteFunction], names: ModelSites) -> Mapping[str, Change]:
    """What is to be changed throughout, by site; refused if it names none that the model has."""
    if not isinstance(changes, Mapping):
        raise SiteError(
            f"changes map sites to a Change or a function each, such as {{'blocks.3.residual': Change(scale=0)}}; not "
            f"{changes!r}."
        )
    return Watch.parse(changes, names).changes


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
    inputs: dict[str, Any] = field(default_factory=dict)  # the values that its changes are computed from
    offset: int = 0  # the column of its first token

    def row_part(self, site: str, value: Any) -> Any:
        """This row's part of a batched value, with a batch axis of one."""
        if self.row is None:
            return value
        index: list[slice] = []
        for name in axes(site):
            if name == "batch":
                index.append(slice(self.row, self.row + 1))
            elif name == "length" and self.length is not None:
                index.append(slice(self.offset, self.offset + self.length))
            else:
                index.append(slice({"keys": self.keys, "source": self.source}.get(name)))
        return value[tuple(index)]


class Tap:
    """The watches of one pass, live. Layers hand values to `apply` and go on with what it returns."""

    __slots__ = ("_changed", "_read", "modules", "observers", "recompute")

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)
        self._read = frozenset().union(*(observer.watch.reads | observer.watch.inputs for observer in self.observers))
        self._changed = frozenset().union(*(observer.watch.changes for observer in self.observers))
        self.recompute = any(observer.watch.recompute for observer in self.observers)
        self.modules = tuple(site for site in sorted(self._read | self._changed) if is_module(site))

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
                if site in observer.watch.reads and not (observer.watch.recompute and site in observer.record):
                    observer.record[site] = observer.row_part(site, value)
                if site in observer.watch.inputs:
                    observer.inputs[site] = observer.row_part(site, value)
        return value

    def _change(self, site: str, value: Any) -> Any:
        for observer in self.observers:
            change = observer.watch.changes.get(site)
            if change is None:
                continue
            where = where_of(site, observer.start, values=observer.inputs)
            if observer.row is None:
                value = change.apply(value, where)
            else:
                value = value.clone() if hasattr(value, "clone") else value.copy()
                part = observer.row_part(site, value)
                part[...] = change.apply(part, where)
        return value
