"""Attention: how much each token took from each other one, in one head, as a mean over heads, or through all layers.

Rollout follows the paths through all layers: the product of each layer's mean over heads, averaged with the identity for
the residual stream (Abnar and Zuidema, 2020). These are weights, not reasons: a token can get much attention and change
nothing. What changes the answer is found by changing something: see `Model.changed`.

In some families a head has a sink (gpt-oss): a learned score beside those of the keys, which takes its part of each row's
attention and gives nothing for it. It is a column of its own here, so that each row sums to one. A rollout treats it as a
place that is never left: what a layer gave to it stays there.

Shapes: weights (queries, keys), sink (queries); the two of a row sum to one. Of all heads' maps at once a byte for each
weight: (layers held, heads, queries, keys), sinks (layers held, heads, queries), flat in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint
from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, SiteError, did_you_mean
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.sites import ENCODER
from glassformer.ops.attend import Attend
from glassformer.ops.recur import Recur
from glassformer.ops.token_mixer import TokenMixer
from glassformer.page.document import (
    Column,
    Grid,
    Heading,
    HoverMap,
    Page,
    PagePart,
    Paragraph,
    Table,
    TableRow,
    ThumbnailGrid,
)
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.tokens import Token, find_token
from glassformer.see.view import ArrayView, Floats, View

AttentionKind: TypeAlias = Literal["self", "recurrent", "cross", "encoder"]
MAX_TOKENS = 48  # rows and columns of a map, unless everything is shown
MAX_GRID_TOKENS = 96  # above, a map is drawn as an image
MAX_HOVER_TOKENS = 256  # above, a text cannot be hovered over
MAX_ROW_TOKENS = 12  # tokens listed for one row of a map
MAX_PATTERN_HEADS = 8  # heads listed for each pattern
PATTERNS = {  # a field of HeadSummary, by what the head attends to
    "the first token": "first",
    "the token before": "previous",
    "the token itself": "itself",
    "the same token earlier": "duplicate",
    "what followed the same token earlier (induction)": "induction",
    "the sink, and so to no token": "sink",
}
SINK = "(sink)"  # as its column is called
SINGLE_TOKEN = "a single token can attend to itself only, so all heads do the same"
NO_REPEATS = "no token comes twice, so there are no copies to attend to (a word with a space before it is another token)"
STATE_NOTE = (
    "A layer that keeps a state has no attention weights; shown are the shares of its effective ones: |weight| ÷ their sum."
)
NOTE = "Attention shows where, not why: a token can get much attention and change nothing. To find out, change it."


@dataclass(frozen=True)
class AttendedToken:
    """One token that was attended to, and how much."""

    position: int
    text: str
    weight: float


@dataclass(frozen=True)
class AttentionRow(View):
    """What one token attended to."""

    SCHEMA = "glassformer.attention-row/2"

    model: str
    what: str  # which layer and head
    position: int
    text: str
    attended: tuple[AttendedToken, ...]  # in the order of the text
    note: str = NOTE
    sink: float | None = None  # what the sink took; None: there is none

    def page(self, everything: bool = False) -> Page:
        """What one token attended to, the most first."""
        best = self.best if everything else self.best[:MAX_ROW_TOKENS]
        rows = [
            TableRow((str(token.position), visible(token.text), format_percent(token.weight), token.weight))
            for token in best
        ]
        if self.sink is not None:
            rows.append(TableRow(("", SINK, format_percent(self.sink), self.sink), "dim"))
        table = Table(
            (
                Column("position", "number"),
                Column("token", "token", min_width=8),
                Column("weight", "number"),
                Column("", "bar", priority=6),
            ),
            tuple(rows),
        )
        title = f"{self.model}: what {visible(self.text)} (position {self.position}) attended to: {self.what}"
        return Page.titled(title, table, Paragraph(self.note, "dim"))

    @property
    def best(self) -> list[AttendedToken]:
        """Most attended to first."""
        return sorted(self.attended, key=lambda token: -token.weight)


@dataclass(frozen=True)
class AttentionMap(ArrayView):
    """The attention weights of a text's tokens over each other."""

    SCHEMA = "glassformer.attention/1"

    model: str
    kind: AttentionKind
    layer: int | None  # None: all of them
    head: int | None  # None: their mean
    rollout: bool
    queries: tuple[str, ...]  # the tokens that attend
    keys: tuple[str, ...]  # the tokens that are attended to
    weights: Floats = field(compare=False)
    note: str = NOTE
    sink: Floats | None = field(default=None, compare=False)  # what of each row the sink took; None: there is none

    def page(self, everything: bool = False) -> Page:
        """A map; of a long text the first token, where heads rest, and the last ones. All of a long text is an image."""
        same_text = self.kind != "cross"
        rows = _shown_tokens(len(self.queries), everything, keep_first=False)
        columns = _shown_tokens(len(self.keys), everything, keep_first=same_text)
        every, names = with_sink(self.weights, self.sink), self.keys
        if self.sink is not None:
            columns, names = [*columns, len(names)], (*names, SINK)
        shown = np.ix_(rows, columns)
        weights, strengths = every[shown], shades(every)[shown]
        causal = same_text and not self.weights[np.triu_indices(len(self.queries), 1)].any()
        title = f"{self.model}: attention, {self.what()}"
        parts: list[PagePart] = [
            Paragraph(
                "each row is a token, each column one that it attends to; shades: √(weight ÷ the row's strongest)", "dim"
            ),
        ]
        size = max(len(rows), len(columns))
        if size <= MAX_HOVER_TOKENS:  # more would be megabytes of HTML
            values = tuple(
                tuple(
                    None if causal and query < key < len(self.keys) else float(strengths[y, x])
                    for x, key in enumerate(columns)
                )
                for y, query in enumerate(rows)
            )
            notes = tuple(tuple(format_percent(float(weight)) for weight in row) for row in weights)
            queries = tuple(visible(self.queries[row]) for row in rows)
            keys = tuple(visible(names[column]) for column in columns)
            parts.append(HoverMap(queries, keys, values, notes))
        if size <= MAX_GRID_TOKENS:
            parts.append(Grid(queries, keys, values, notes=notes, keep_first=same_text, all_columns=everything))
        else:
            parts.append(
                ThumbnailGrid(("attends",), ("is attended to",), np.round(255 * strengths).astype(np.uint8)[None, None])
            )
        if self.sink is not None:
            parts.insert(2, Paragraph(f"{SINK}, the last column: what a learned score that stands for no token took", "dim"))
        if len(self.queries) > len(rows) or len(names) > len(columns):
            hidden = format_percent(1 - float(weights.sum(1).mean()))
            parts.insert(
                2,
                Paragraph(
                    f"{len(rows)} of {len(self.queries)} tokens (--all); {hidden} of their weight is not shown", "dim"
                ),
            )
        parts.append(Paragraph(self.note, "dim"))
        return Page.titled(title, *parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights.shape

    def numbers(self) -> Floats:
        return self.weights

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each token that attends, and each that it attends to."""
        return [
            {"query": query, "query_token": self.queries[query], "key": key, "key_token": text, "weight": weight}
            for query, row in enumerate(self.weights.tolist())
            for key, (text, weight) in enumerate(zip(self.keys, row, strict=True))
        ]

    def __getitem__(self, index: Any) -> Any:
        return self.weights[index]

    def what(self) -> str:
        """Which map it is, in words."""
        kind = {"self": "", "recurrent": "the recurrent layer, ", "cross": "cross-attention, ", "encoder": "the encoder's "}[
            self.kind
        ]
        if self.rollout:
            return f"{kind}all layers, rolled out"
        if self.layer is None:
            return f"{kind}mean of all layers and heads"
        return f"{kind}layer {self.layer}, {'mean of its heads' if self.head is None else f'head {self.head}'}"

    @operation(owner="reading.attention", verb="attention", chosen_by=("token",))
    def of(
        self,
        token: Annotated[int | str, about("What this token attended to; its position or its text.", "--token", "-t")],
    ) -> AttentionRow:
        """What one token attended to: by its position (-1 is the last), or by its text."""
        chosen = find_token(token, self.queries)
        causal = self.kind == "self" and not self.weights[chosen, chosen + 1 :].any()
        weights = zip(self.keys, self.weights[chosen, : chosen + 1 if causal else None].tolist(), strict=False)
        attended = tuple(AttendedToken(position, text, weight) for position, (text, weight) in enumerate(weights))
        sink = None if self.sink is None else float(self.sink[chosen])
        return AttentionRow(self.model, self.what(), chosen, self.queries[chosen], attended, self.note, sink)

    def __repr__(self) -> str:
        return f"AttentionMap({self.what()}: {len(self.queries)} × {len(self.keys)})"


@dataclass(frozen=True)
class HeadSummary:
    """What a head does: where its weight goes, and how spread out it is; over all tokens but the first, which can attend to
    itself only."""

    layer: int
    head: int
    entropy: float  # in bits, mean over the tokens that look; a sink counts as one more place to look at
    first: float | None  # the fraction that goes to the first token; None here and below: no token could
    previous: float | None
    itself: float | None
    duplicate: float | None  # to the same token earlier, mean over the tokens that are repeated
    induction: float | None  # to what followed the same token earlier
    sink: float | None = None  # to the sink; None: there is none


@dataclass(frozen=True)
class Heads(View):
    """All heads of all layers, each in a few numbers."""

    SCHEMA = "glassformer.heads/2"

    model: str
    kind: AttentionKind
    tokens: tuple[str, ...]
    layers: int
    heads: int
    summaries: tuple[HeadSummary, ...]
    repeated: tuple[int, int] = (0, 0)  # repeated tokens, and those of them whose earlier copy has a successor
    note: str = NOTE
    maps: npt.NDArray[np.uint8] | None = field(default=None, repr=False, compare=False, metadata={"stored": False})

    def page(self, everything: bool = False) -> Page:
        """The entropy of each head, layer by layer, and the heads that have one plain pattern."""
        most = max((summary.entropy for summary in self.summaries), default=1.0) or 1.0
        entropies = {(summary.layer, summary.head): summary.entropy / most for summary in self.summaries}
        values = tuple(tuple(entropies.get((layer, head)) for head in range(self.heads)) for layer in range(self.layers))
        layers = tuple(f"layer {layer}" for layer in range(self.layers))
        tokens = pluralize(len(self.tokens), "token")
        title = f"{self.model}: {self.layers} layers × {self.heads} heads over {tokens}"
        parts: list[PagePart] = []
        if len(self.tokens) == 1 and self.kind != "cross":
            return Page.titled(title, *parts, Paragraph(SINGLE_TOKEN))
        parts += [
            Paragraph(
                f"entropy of each head's weights: blank attends to one token, full is {most:.1f} bits{_sink_note(self)}",
                "dim",
            ),
            Grid(layers, tuple(str(head) for head in range(self.heads)), values),
        ]
        if self.maps is not None:
            parts.append(ThumbnailGrid(layers, tuple(f"head {head}" for head in range(self.heads)), self.maps))
        else:
            parts.append(
                Paragraph(f"{tokens} are too many for a thumbnail of each head; --layer and --head show one", "dim")
            )
        if self.kind != "cross":
            for target, field_name in PATTERNS.items():
                heads = [
                    (weight, summary) for summary in self.summaries if (weight := getattr(summary, field_name)) is not None
                ]
                heads.sort(key=lambda pair: -pair[0])
                if heads:
                    ranking = _heads_table(heads if everything else heads[:MAX_PATTERN_HEADS])
                    parts += [Heading(f"heads that attend most to {target}"), ranking]
            parts.append(Paragraph(_repeats_text(self), "dim"))
        parts.append(Paragraph(self.note, "dim"))
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"Heads({self.layers} layers × {self.heads} heads)"


def with_sink(weights: Floats, sink: Floats | None) -> Floats:
    """The weights (…, queries, keys) with what the sink took as the last column, where there is one."""
    return weights if sink is None else np.concatenate((weights, sink[..., None]), -1)


def shades(weights: Floats) -> Floats:
    """How dark a map's cells are drawn, from 0 to 1: as the square root of the weight, relative to a row's strongest.

    Many heads rest on the first token; in proportion, nothing else could be seen next to it.
    """
    strengths: Floats = np.sqrt(weights / np.maximum(weights.max(-1, keepdims=True), 1e-9))
    return strengths


def _shown_tokens(count: int, everything: bool, keep_first: bool) -> list[int]:
    """The positions that are shown: all, or the last ones, and the first if it is kept."""
    if everything or count <= MAX_TOKENS:
        return list(range(count))
    last = list(range(count - MAX_TOKENS, count))
    return [0, *last[1:]] if keep_first else last


def _sink_note(view: Heads) -> str:
    if all(summary.sink is None for summary in view.summaries):
        return ""
    return "; the sink, the last column of each head's map, counts as one more token"


def _heads_table(heads: Iterable[tuple[float, HeadSummary]]) -> Table:
    rows = (
        TableRow((f"layer {summary.layer}", f"head {summary.head}", format_percent(weight), float(weight)))
        for weight, summary in heads
    )
    return Table((Column(), Column(), Column("", "number"), Column("", "bar", priority=6)), tuple(rows))


def _repeats_text(view: Heads) -> str:
    """Over how many tokens the last two are means."""
    repeated, followed = view.repeated
    if not repeated:
        return NO_REPEATS
    return f"the same token earlier: mean over {repeated} repeated tokens; what followed it: over {followed}"


@dataclass(frozen=True)
class AttentionMaps(View):
    """Every head's map, of as many layers as fit."""

    SCHEMA = "glassformer.attention-maps/1"

    model: str
    kind: AttentionKind
    kinds: tuple[AttentionKind, ...]  # that the model has
    layers: int  # that the model has
    heads: int  # of each layer
    first: int  # the first layer that is held
    queries: tuple[str, ...]  # the tokens that attend
    keys: tuple[str, ...]  # the tokens that are attended to
    causal: bool  # whether later tokens are masked
    windows: tuple[int | None, ...]  # of each held layer: how many tokens, up to itself, a token can attend to; None: all
    weights: bytes = field(repr=False)  # 255 × the weight, rounded
    note: str = NOTE
    sinks: bytes | None = field(default=None, repr=False)  # the same of what sinks took; None: there are none

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: attention, every head of layers {self.first} to {self.first + len(self.windows) - 1}"
        layers = tuple(f"layer {self.first + index}" for index in range(len(self.windows)))
        maps, notes = self.maps, [Paragraph(self.note, "dim")]
        if self.sinks is not None:
            maps = np.concatenate((maps, np.frombuffer(self.sinks, np.uint8).reshape(*maps.shape[:-1], 1)), -1)
            notes.insert(0, Paragraph(f"{SINK} is the last column of each map", "dim"))
        grid = ThumbnailGrid(layers, tuple(f"head {head}" for head in range(self.heads)), maps)
        return Page.titled(title, grid, *notes)

    @property
    def maps(self) -> npt.NDArray[np.uint8]:
        """The weights as an array, 255 for all of a token's attention."""
        shape = (len(self.windows), self.heads, len(self.queries), len(self.keys))
        return np.frombuffer(self.weights, np.uint8).reshape(shape)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each head of each layer that is held: what it mostly attends to, on the mean over the tokens."""
        means = self.maps.mean(2) / 255  # (layers, heads, keys)
        return [
            {"layer": self.first + layer, "head": head, "key": key, "key_token": self.keys[key], "weight": float(row[key])}
            for layer, heads in enumerate(means)
            for head, row in enumerate(heads)
            for key in [int(row.argmax())]
        ]

    def __repr__(self) -> str:
        return f"AttentionMaps({len(self.windows)} of {self.layers} layers × {self.heads} heads)"


SITES = {
    "self": "blocks.{}.attention.pattern",
    "recurrent": "blocks.{}.recurrent.pattern",
    "cross": "blocks.{}.cross.pattern",
    "encoder": ENCODER + "blocks.{}.attention.pattern",
}
MAX_DRAWN = 96  # tokens of a text whose maps are drawn
ROLLOUT_NOTE = " Rollout tends to end at the first token, where most heads of a decoder rest when they have nothing to do."
MAX_BYTES = 2_000_000_000  # of a rollout
MAX_MAPS_BYTES = 16_000_000  # of all heads' maps, a byte for each weight
KindArgument = Annotated[
    AttentionKind,
    about("self; recurrent, of states that stand beside attention; for an encoder-decoder also cross or encoder."),
]


@operation(
    route="attention",
    verb="attention",
    chosen_by=("layer", "head", "rollout"),
    flags={"mean": "The mean of all layers and heads."},
)
def attention(
    reading: Activations,
    layer: Annotated[int | None, about("Which layer; -1 is the last.", "--layer", "-l")] = None,
    head: Annotated[int | None, about("Which of its heads; by default their mean.")] = None,
    *,
    kind: KindArgument = "self",
    rollout: Annotated[bool, about("Attention rollout through all layers.")] = False,
    progress: Progress | None = None,
) -> AttentionMap:
    """Show who attended to whom: one head, a layer's mean, all layers' mean, or their rollout.

    `.of(token)` is one row of it.
    """
    layers, _ = layers_and_heads(reading, kind)
    attending = attending_layers(reading.model.blueprint, kind)
    layer = None if layer is None else checked_index(layer, layers, "layer")
    if layer is not None and layer not in attending:
        raise InputError(
            f"layer {layer} of {reading.model.name} has no attention pattern, since its tokens do not attend to each other. "
            f"Take one of the layers {', '.join(map(str, attending))}."
        )
    if head is not None and layer is None:
        raise InputError(f"head {head} of which layer? Name one of 0 to {layers - 1}.")
    if head is not None and layer is not None:
        head = checked_index(head, heads_of(reading.model.blueprint, SITES[kind].format(layer)), "head")
    if rollout and (layer is not None or kind == "cross"):
        raise InputError(
            "a rollout goes through all layers of one stack. Leave out the layer, the head and cross-attention."
        )
    if layer is not None:
        site = SITES[kind].format(layer)
        pattern = as_attention(reading.model.blueprint, site, reading.at(site))
        weights = pattern.mean(0) if head is None else pattern[head]
    else:
        weights = _across_layers(reading, kind, attending, rollout, progress)
    queries, keys = (tuple(token.text for token in tokens) for tokens in queries_and_keys(reading, kind))
    note = _note(reading.model.blueprint, kind, layer) + (ROLLOUT_NOTE if rollout else "")
    sinks, of_layers = sink_sites(reading.model.blueprint), attending if layer is None else [layer]
    sink = sink_weights(weights) if any(SITES[kind].format(held_layer) in sinks for held_layer in of_layers) else None
    return AttentionMap(reading.model.name, kind, layer, head, rollout, queries, keys, weights, note, sink)


def state_sites(blueprint: Blueprint) -> frozenset[str]:
    """The patterns that are effective ones, of layers that keep a state."""
    return frozenset(op.inner_site("pattern") for op in blueprint.ops_of(Recur))


def as_attention(blueprint: Blueprint, site: str, pattern: Floats) -> Floats:
    """A pattern whose rows sum to one, or to what a sink leaves: an effective one as the shares of its weights' sizes."""
    if site not in state_sites(blueprint):
        return pattern
    sizes = np.abs(pattern)
    return np.asarray(sizes / np.maximum(sizes.sum(-1, keepdims=True), 1e-30), np.float32)


def sink_sites(blueprint: Blueprint) -> frozenset[str]:
    """The patterns whose heads have a sink."""
    return frozenset(op.inner_site("pattern") for op in blueprint.ops_of(Attend) if op.weights)


def sink_weights(pattern: Floats) -> Floats:
    """What sinks took of the rows of a pattern: (…, queries)."""
    return np.asarray(np.clip(1 - pattern.sum(-1, dtype=np.float64), 0.0, 1.0), np.float32)


def _across_layers(
    reading: Activations, kind: AttentionKind, layers: Sequence[int], rollout: bool, progress: Progress | None
) -> Floats:
    """The means over heads of all layers that attend, averaged, or rolled out."""
    queries, keys = (len(tokens) for tokens in queries_and_keys(reading, kind))
    count = len(layers) if rollout else 1
    if (size := count * queries * keys * 4) > MAX_BYTES:
        raise InputError(
            f"a rollout over {queries:,} tokens would hold {size / 1e9:.1f} GB. Shorten the text, or name a layer."
        )
    maps = np.zeros((count, queries, keys), np.float32)
    for chunk in reading.chunks(*(SITES[kind].format(layer) for layer in layers), progress=progress):
        for site, value in chunk.sites.items():
            place = layers.index(layer_of_site(site)) if rollout else 0
            start = 0 if kind == "encoder" else chunk.start
            mean = as_attention(reading.model.blueprint, site, value).mean(0)
            maps[place, start : start + mean.shape[0], : mean.shape[1]] += mean
    if not rollout:
        mean_map: Floats = maps[0] / len(layers)
        return mean_map
    product: Floats = np.eye(queries, dtype=np.float32)
    for layer_map in maps:
        product = 0.5 * (layer_map @ product) + 0.5 * product
    return product


@operation(
    verb="attention",
    example='glass attention --raw "The cat sat because it was tired." --layer 3 --head 1   ·   '
    'glass attention --raw "The cat sat because it was tired." --token it --rollout',
    verb_help="Show which tokens each token attended to: one map, one token's row, or all heads at once.",
)
def heads(reading: Activations, *, kind: KindArgument = "self", progress: Progress | None = None) -> Heads:
    """Show all heads of all layers, each in a few numbers: where it mostly looks, and how widely."""
    layers, count = layers_and_heads(reading, kind)
    sums, counts, sinks = np.zeros((layers, count, 7)), np.zeros(7), sink_sites(reading.model.blueprint)
    queries, keys = queries_and_keys(reading, kind)
    ids = np.array([token.id for token in queries])
    small, attending = max(len(queries), len(keys)) <= MAX_DRAWN, attending_layers(reading.model.blueprint, kind)
    maps = np.zeros((layers, count, len(queries), len(keys) + bool(sinks)), np.uint8) if small else None
    for chunk in reading.chunks(*(SITES[kind].format(index) for index in attending), progress=progress):
        start = 0 if kind == "encoder" else chunk.start
        _, rows, columns = next(iter(chunk.sites.values())).shape
        targets = _targets(start, rows, columns, None if kind == "cross" else ids)
        counts += [rows - (start == 0), *targets.any(-1).sum(-1), rows - (start == 0)]
        for site, pattern in chunk.sites.items():
            value, layer = as_attention(reading.model.blueprint, site, pattern), layer_of_site(site)
            sink = sink_weights(value) if site in sinks else None
            sums[layer, : len(value)] += _sums(value, sink, targets, start)
            if maps is not None:
                _draw(maps[layer, : len(value)], value, sink, start)
    summaries = []
    for layer, head in np.ndindex(layers, count):
        if layer not in attending or head >= heads_of(reading.model.blueprint, SITES[kind].format(layer)):
            continue
        means = (float(total / n) if n else None for total, n in zip(sums[layer, head], counts, strict=True))
        entropy, first, previous, itself, duplicate, induction, sink_share = means
        own_sink = sink_share if SITES[kind].format(layer) in sinks else None
        shares = (first, previous, itself, duplicate, induction, own_sink)
        summaries.append(HeadSummary(layer, head, entropy or 0.0, *shares))
    texts, repeats = tuple(token.text for token in queries), (int(counts[4]), int(counts[5]))
    note = _note(reading.model.blueprint, kind)
    return Heads(reading.model.name, kind, texts, layers, count, tuple(summaries), repeats, note, maps)


def attention_kinds(reading: Activations) -> tuple[AttentionKind, ...]:
    blueprint = reading.model.blueprint
    beside: tuple[AttentionKind, ...] = ("recurrent",) if attending_layers(blueprint, "recurrent") else ()
    return ("self", *beside, *(("cross", "encoder") if blueprint.encoder_blocks else ()))


def layer_of_site(site: str) -> int:
    return int(site.removeprefix(ENCODER).split(".")[1])


def _targets(start: int, queries: int, keys: int, ids: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_]:
    """What a pattern would have each query look at, (patterns, queries, keys); the first token looks nowhere.

    The first token, the one before, itself, the same token earlier, and what followed that.
    """
    query, key = np.arange(start, start + queries)[:, None], np.arange(keys)
    targets = np.stack([key == np.zeros_like(query), key == query - 1, key == query, *[np.zeros((queries, keys), bool)] * 2])
    if ids is not None:
        same = ids[query] == ids[:keys]
        targets[3] = same & (key < query)
        targets[4, :, 1:] = (same & (key < query - 1))[:, :-1]
    return targets & (query > 0)


def _sums(weights: Floats, sink: Floats | None, targets: npt.NDArray[np.bool_], start: int) -> Any:
    """Of (heads, queries, keys): the entropy of all rows but the first token's, in bits; the weight on each target; and what
    the sink took of these rows."""
    rows = with_sink(weights, sink)[:, 1 if start == 0 else 0 :]
    entropy = -(rows * np.log2(np.maximum(rows, 1e-12))).sum((1, 2))
    taken = np.zeros(len(rows)) if sink is None else rows[..., -1].sum(-1)
    return np.column_stack([entropy, np.einsum("hqk,tqk->ht", weights, targets.astype(np.float32)), taken])


def layers_and_heads(reading: Activations, kind: AttentionKind) -> tuple[int, int]:
    """How many layers there are to look at, and how many heads the one with the most of them has."""
    blueprint = reading.model.blueprint
    if kind not in SITES:
        raise InputError(f"there is no attention called {kind!r}.{did_you_mean(kind, SITES)} Kinds: {', '.join(SITES)}.")
    if kind in ("cross", "encoder") and not blueprint.encoder_blocks:
        raise InputError(f"{reading.model.name} is no encoder-decoder: it has self-attention only.")
    layers = blueprint.encoder_blocks if kind == "encoder" else blueprint.blocks
    attending = attending_layers(blueprint, kind)
    if not attending:
        raise SiteError(
            f"no layer of {reading.model.name} has a site like {SITES[kind].format(0)!r}, and this view shows patterns. "
            "Its sites: glass look --sites."
        )
    return layers, max(heads_of(blueprint, SITES[kind].format(layer)) for layer in attending)


def attending_layers(blueprint: Blueprint, kind: AttentionKind = "self") -> list[int]:
    """The layers that have a pattern; a short convolution, for one, has none."""
    layers = blueprint.encoder_blocks if kind == "encoder" else blueprint.blocks
    return [layer for layer in range(layers) if SITES[kind].format(layer) in blueprint.sites]


def _note(blueprint: Blueprint, kind: AttentionKind, layer: int | None = None) -> str:
    """What is to be said of a layer's attention; None: of all layers'."""
    attending, states = attending_layers(blueprint, kind), state_sites(blueprint)
    layers = range(blueprint.encoder_blocks if kind == "encoder" else blueprint.blocks)
    absent = [str(other) for other in layers if other not in attending] if layer is None else []
    shown = attending if layer is None else [layer]
    parts = [STATE_NOTE] if any(SITES[kind].format(one) in states for one in shown) else []
    if absent:
        parts.append(f"Without an attention pattern, and left out: {pluralize(len(absent), 'layer')} ({', '.join(absent)}).")
    return " ".join([*parts, NOTE])


def heads_of(blueprint: Blueprint, pattern: str) -> int:
    """How many heads a layer has, by the site of its pattern."""
    heads = blueprint.sites[pattern][1]
    assert isinstance(heads, int)
    return heads


def queries_and_keys(reading: Activations, kind: AttentionKind) -> tuple[Sequence[Token], Sequence[Token]]:
    """The tokens that look, and those that are looked at."""
    text, source = reading.tokens, reading.source_tokens
    return {"cross": (text, source), "encoder": (source, source)}.get(kind, (text, text))


def checked_index(index: int, count: int, what: str) -> int:
    """A layer or a head, counted from the end if negative; refused if there is none."""
    if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
        raise InputError(f"there is no {what} {index!r}: this model has {count}, 0 to {count - 1}.")
    return index % count


def _draw(maps: npt.NDArray[np.uint8], weights: Floats, sink: Floats | None, start: int) -> None:
    """A chunk's rows of a layer's maps; the sink is their last column."""
    _, queries, keys = weights.shape
    drawn = np.round(255 * shades(with_sink(weights, sink))).astype(np.uint8)
    maps[:, start : start + queries, :keys] = drawn[..., :keys]
    if sink is not None:
        maps[:, start : start + queries, -1] = drawn[..., -1]


@operation(route="attention-maps")
def attention_maps(
    reading: Activations,
    first: Annotated[int, about("The first layer that is shown.")] = 0,
    *,
    kind: KindArgument = "self",
) -> AttentionMaps:
    """Show every head's attention with a byte for each weight, of as many layers as fit, from a layer on."""
    layers, count = layers_and_heads(reading, kind)
    start_layer = checked_index(first, layers, "layer")
    queries, keys = (tuple(token.text for token in tokens) for tokens in queries_and_keys(reading, kind))
    size = count * len(queries) * len(keys)
    if size > MAX_MAPS_BYTES:
        raise InputError(
            f"the text is too long for a map of each head: {max(len(queries), len(keys)):,} tokens. "
            "Shorten it, or look at one head."
        )
    held = range(start_layer, min(layers, start_layer + MAX_MAPS_BYTES // size))
    sites, blueprint = [SITES[kind].format(block) for block in held], reading.model.blueprint
    attending = attending_layers(blueprint, kind)
    patterns = [site for block, site in zip(held, sites, strict=True) if block in attending]
    maps, sinks = np.zeros((len(held), count, len(queries), len(keys)), np.uint8), sink_sites(reading.model.blueprint)
    sink_maps = np.zeros(maps.shape[:-1], np.uint8) if sinks.intersection(sites) else None
    for chunk in reading.chunks(*patterns) if patterns else ():
        for site, value in chunk.sites.items():
            start = 0 if kind == "encoder" else chunk.start
            value = as_attention(reading.model.blueprint, site, value)
            held_heads, rows, columns = value.shape
            place = layer_of_site(site) - start_layer, slice(held_heads), slice(start, start + rows)
            maps[(*place, slice(columns))] = np.round(255 * value).astype(np.uint8)
            if sink_maps is not None and site in sinks:
                sink_maps[place] = np.round(255 * sink_weights(value)).astype(np.uint8)
    masks = {op.inner_site("pattern"): op.options for op in reading.model.blueprint.ops_of(TokenMixer)}
    causal = kind in ("self", "recurrent") and bool(masks.get(sites[0], {}).get("causal", reading.model.writes))
    windows = tuple(masks.get(site, {}).get("window") for site in sites)
    return AttentionMaps(
        reading.model.name, kind, attention_kinds(reading), layers, count, start_layer, queries, keys, causal, windows,
        maps.tobytes(), _note(blueprint, kind), None if sink_maps is None else sink_maps.tobytes(),
    )  # fmt: skip
