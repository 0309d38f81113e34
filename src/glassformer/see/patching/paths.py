"""Path patching: what one place inside a model tells another directly, and nobody else in between.

Patching a head changes everything that reads it, and everything that reads those. Here only the paths to named receivers
count (Wang et al. 2022, Goldowsky-Dill et al. 2023), in two passes over the second text:

1. The sender has the first text's value, and all heads after it are frozen to what they have in the second text. What
   then arrives at the receivers has come along the residual stream, and through MLPs, unless they are frozen too.
2. The receivers get that, and everything else is computed as usual.

Where the receiver is `final`, the first pass's scores are the answer.

Shapes: a site's values (…, length, …), without a batch axis; those of a pass begin at its first position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, SiteError, did_you_mean
from glassformer.ground.sites import Watch, axes
from glassformer.see.activations import Activations
from glassformer.see.patching.compute import PairOutcome
from glassformer.see.patching.pair import PatchedRun, ReadPair, TextPair
from glassformer.see.patching.view import PatchedPath, PathPatching
from glassformer.see.view import Floats

HEADS = ("attention.heads", "recurrent.heads")
SENDERS = ("embedding", *HEADS, "attention.update", "recurrent.update", "mlp.update", "residual")
RECEIVERS = (
    *(f"{mixer}.{part}" for mixer in ("attention", "recurrent") for part in ("input", "query", "key", "value")),
    "mlp.input", "final",
)  # fmt: skip
ALL_HEADS = "blocks.*.attention.heads"


@dataclass(frozen=True)
class PathEnd:
    """A sender or a receiver: a site, or one head of it."""

    site: str
    head: int | None = None

    @property
    def block(self) -> int | None:
        return int(self.site.split(".")[1]) if self.site.startswith("blocks.") else None

    def __str__(self) -> str:
        return self.site if self.head is None else f"{self.site}.{self.head}"


def path_ends(patterns: Sequence[str], text: Activations, parts: Sequence[str], each_head: bool = False) -> list[PathEnd]:
    """Senders or receivers by their names: sites, perhaps followed by a head; `each_head`: without one, each by itself.

    `blocks.9.attention.query.6` is one head's query, `blocks.*.attention.heads` all heads of all blocks.
    """
    ends: list[PathEnd] = []
    blueprint = text.model.blueprint
    for name in patterns:
        stem, _, number = name.rpartition(".")
        head = int(number) if number.isdecimal() and stem.count(".") > 1 else None
        for site in blueprint.site_names.expand([name if head is None else stem]):
            part = site.split(".", 2)[-1]
            if part not in parts:
                own = {own_site.split(".", 2)[-1] for own_site in blueprint.sites}
                possible = [name for name in parts if name in own]
                raise SiteError(
                    f"a path cannot {'begin' if each_head else 'end'} at {site!r}.{did_you_mean(part, possible)} It can at: "
                    f"{', '.join(possible)}."
                )
            if site not in blueprint.sites:
                continue
            count = int(text.shape(site)[0]) if "heads" in axes(site) else 0
            if head is not None and head >= count:
                raise SiteError(f"there is no head {head} at {site!r}, which has {count}.")
            heads: Sequence[int | None] = range(count) if each_head and count and head is None else [head]
            ends += [PathEnd(site, each) for each in heads]
    return list(dict.fromkeys(ends))


class Paths:
    """The paths from each sender to all receivers, in one pair of texts."""

    def __init__(self, pair: TextPair, sender: str, receivers: Sequence[str], freeze_mlps: bool) -> None:
        model, blueprint = pair.first.model, pair.first.model.blueprint
        if pair.in_encoder:
            raise InputError(f"{model.name} has two stacks. Path patching is for models of one.")
        senders = path_ends([sender], pair.first, SENDERS, each_head=True)
        self.receivers = path_ends(receivers, pair.first, RECEIVERS)
        if not self.receivers:
            raise InputError("name at least one receiver, such as 'final' or 'blocks.3.attention.query.1'.")
        self.direct = PathEnd("final") in self.receivers  # whether the first pass is all there is
        if self.direct and len(self.receivers) > 1:
            raise InputError("'final' is the end of the model, and hides what other receivers do. Name it alone.")
        self.pair, self.freeze_mlps, self.blocks = pair, freeze_mlps, blueprint.blocks
        self.order = blueprint.site_names.order
        last = max(self.order[end.site] for end in self.receivers)
        self.senders = [end for end in senders if self.order[end.site] < last]
        if not self.senders:
            raise InputError(f"no receiver comes after {senders[0]}, so there is no path from it.")
        self.start = min(pair.positions) if pair.causal else 0
        self.all = list(range(self.start, len(pair.ids(pair.second))))  # the positions of a pass

    def sites(self, pair: TextPair) -> Collection[str]:
        return dict.fromkeys(end.site for end in self.senders)

    def size(self, pair: TextPair) -> tuple[int, int, int]:
        """How many senders and passes there are, and how many tokens those read."""
        senders, passes = len(self.senders), 1 if self.direct else 2
        return senders, passes, senders * passes * len(self.all)

    def patched(self, read: ReadPair) -> Iterator[tuple[PathEnd, Floats]]:
        """The second text's logits for each sender: after the first pass, and where that is not all, after the second."""
        frozen = self.pair.second.values(*self._frozen_sites(self.senders))
        second_runs = []
        for end, logits, sites in read.patched(
            [self._sender_run(end, read.values[end.site], frozen) for end in self.senders]
        ):
            yield end, logits
            if not self.direct:
                second_runs.append(self._receiver_run(end, sites))
        yield from ((end, logits) for end, logits, _ in read.patched(second_runs))

    def view(self, outcome: PairOutcome[PathEnd]) -> PathPatching:
        return PathPatching(
            self.pair.first.model.name,
            outcome.texts,
            outcome.scored.answers,
            outcome.scored.leads,
            tuple(map(str, self.receivers)),
            ("heads", "mlps") if self.freeze_mlps else ("heads",),
            tuple(self.pair.positions),
            tuple(PatchedPath(str(end), end.block, end.head, outcome.values[end]) for end in self.senders),
            tuple(self.pair.first.model.changes),
        )

    def _frozen_sites(self, senders: Sequence[PathEnd]) -> list[str]:
        """The sites after the first of these senders that keep their values."""
        first = min(self.order[end.site] for end in senders)
        parts = (*HEADS, "mlp.update") if self.freeze_mlps else HEADS
        sites = (f"blocks.{block}.{part}" for block in range(self.blocks) for part in parts)
        return [site for site in sites if self.order.get(site, -1) > first]

    def _sender_run(self, end: PathEnd, value: Floats, frozen: Mapping[str, Floats]) -> PatchedRun[PathEnd]:
        changes = {site: self._replacement(frozen[site], self.all, self.all) for site in self._frozen_sites([end])}
        origins = [self.pair.origins[position] for position in self.pair.positions]
        changes[end.site] = self._replacement(value, origins, self.pair.positions, end.head)
        later = {receiver.site for receiver in self.receivers if self.order[receiver.site] > self.order[end.site]}
        reads = frozenset(later - {"final"})  # what comes before the sender stays as it is
        return PatchedRun(end, Watch(reads, changes), self.start, end.block or 0)

    def _receiver_run(self, sender: PathEnd, arrived: Mapping[str, Floats]) -> PatchedRun[PathEnd]:
        rows = range(len(self.all))
        changes: dict[str, Change] = {}
        reached = [end for end in self.receivers if end.site in arrived]
        for end in reached:
            heads = [other.head for other in self.receivers if other.site == end.site]
            changes[end.site] = self._replacement(arrived[end.site], rows, self.all, *([] if None in heads else heads))
        block = min(end.block or 0 for end in reached)
        return PatchedRun(sender, Watch(changes=changes), self.start, block)

    @staticmethod
    def _replacement(value: Floats, rows: Sequence[int], positions: Sequence[int], *heads: int | None) -> Change:
        """A change that puts some rows of a value at some positions: of all heads, or of these."""
        chosen = [head for head in heads if head is not None]
        if value.ndim == 2:  # (length, hidden)
            return Change(0.0, value[list(rows)], list(positions))
        heads_value = value[chosen or slice(None)][:, list(rows)]
        return Change(0.0, heads_value, list(positions), chosen or None)
