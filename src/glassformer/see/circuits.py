"""QK and OV circuits of a head, in tokens (Elhage et al. 2021): what it looks for, and what it writes of what it reads.

Of a head's two maps through the vocabulary, QK scores a pair of query and key, and OV says what reading a token adds to each
logit. Both are of the vocabulary's size squared, and never built: of each, a few rows are computed, in blocks of the
vocabulary. The eigenvalues of OV are those of a small matrix, as its rank is a head's size.

A token is its embedding without a position, through the norm, projection and bias that the head has. What is written goes
through the weights of the norms behind the head, the final one among them. What they divide by is left out, and so is a soft
cap: both depend on the rest of the stream. So logits are right up to a factor that all tokens share. In a text the stream is
known, and what a head wrote at a position is its share in the logits there, as `attribution` has it.

Composition says how much each head reads of what each earlier one writes. A head reads the stream three times: for its
queries, its keys and its values. If W is one of its maps (QK from either side, or OV) and OV that of an earlier head, then
the norm of their product over the product of their norms is 1 at the most, and 1 / sqrt(hidden) in the mean square if one of
them were turned at random. Positions and biases are no part of it; norms are folded in by their weights. No map is built:
W = A B with few columns between, and the norm of A X is that of R X, where R is the small triangle of A's QR factorization.

Shapes: a token's vectors (tokens, head_size); scores (tokens, vocabulary in blocks); maps (heads, head_size, hidden) and
(heads, hidden, head_size).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked, checked_class
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, visible
from glassformer.see.activations import Activations
from glassformer.see.attention import sink_sites, sink_weights
from glassformer.see.attribution import cap_factors, resolve_token_id
from glassformer.see.head_weights import (
    AttentionWeights,
    check_unembeds,
    embedding_blocks,
    embeddings,
    reads_linearly,
    unembedding_blocks,
    unembeddings,
)
from glassformer.see.linear_walk import direct_sites, stream_values
from glassformer.see.protocols import ModelLike
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats, View

SHOWN = 12  # tokens, unless everything is shown


@dataclass(frozen=True)
class ScoredToken:
    id: int
    text: str
    score: float  # an attention score, or a part of a logit


@dataclass(frozen=True)
class TokenCircuit:
    """One token in a head, from weights alone."""

    id: int
    text: str
    looks_for: tuple[ScoredToken, ...]  # as a query: the keys with the highest attention scores, best first
    writes: tuple[ScoredToken, ...]  # as what is read: the tokens whose logits it raises most, best first
    own_score: float  # what reading it adds to its own logit
    own_rank: int  # 1: it is the first of what it writes


@dataclass(frozen=True)
class PositionWrites:
    """What a head did at one position of a text."""

    position: int
    token: str
    attends_to: int  # the position with the highest attention weight; a sink may take more
    attended_token: str
    weight: float
    writes: tuple[ScoredToken, ...]  # the tokens whose logits it raised most, and by how much, as `attribution` has it
    sink: float | None = None  # what its sink took of the attention; None: it has none


@dataclass(frozen=True)
class HeadCircuit(View):
    """What a head looks for and what it writes."""

    SCHEMA = "glassformer.circuit/1"

    model: str
    layer: int
    head: int
    key_value_head: int  # the head of keys and values that it uses
    distance: int  # how many tokens before the query the keys stand; 0: no positions
    copying: float  # sum of the full OV circuit's eigenvalues over the sum of their sizes: 1 copies, -1 does the opposite
    tokens: tuple[TokenCircuit, ...]
    chosen: bool  # whether the tokens were named; otherwise they are those whose own logit the head raises most
    positions: tuple[PositionWrites, ...]  # of a text; none if there is none

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: what layer {self.layer} head {self.head} looks for and writes"
        distance = "without positions" if not self.distance else f"for keys {self.distance} tokens back"
        sentence = f"from weights alone, as if tokens were read as they enter the first layer; attention scores {distance}"
        tokens = self.tokens if everything else self.tokens[:SHOWN]
        rows = tuple(
            TableRow((visible(token.text), _list(token.looks_for), _list(token.writes), f"{token.own_rank:,}"))
            for token in tokens
        )
        columns = (
            Column("token", "token"), Column("as a query looks for", "text", min_width=20),
            Column("when read, writes", "text", min_width=20), Column("itself at", "number", priority=5),
        )  # fmt: skip
        chosen = "these tokens" if self.chosen else "the tokens that it copies most"
        parts: list[PagePart] = [
            Paragraph(
                f"{sentence}\ncopying score {self.copying:+.2f}: the eigenvalues' sum over the sum of their sizes; 1 raises "
                "each token's own logit, -1 lowers it",
                "dim",
            ),
            Heading(f"its circuits for {chosen}"),
            Table(columns, rows),
        ]
        if len(tokens) < len(self.tokens):
            parts.append(Paragraph(f"{len(self.tokens) - len(tokens)} more tokens (--all)", "dim"))
        if self.positions:
            places = self.positions if everything else self.positions[-SHOWN:]
            parts += [Heading("what it wrote in this text"), _positions_table(places)]
            if len(places) < len(self.positions):
                parts.append(Paragraph(f"{len(self.positions) - len(places)} positions before these (--all)", "dim"))
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"HeadCircuit(layer {self.layer} head {self.head}: copying {self.copying:+.2f}, {len(self.tokens)} tokens)"


def _positions_table(places: Sequence[PositionWrites]) -> Table:
    sinks = any(place.sink is not None for place in places)
    sink = (Column("sink", "number"), lambda place: format_percent(place.sink or 0.0))
    return Table.of(
        places,
        (Column("at", "number"), lambda place: str(place.position)),
        (Column("token", "token"), lambda place: visible(place.token)),
        (Column("attends most to", "token"), lambda place: f"{visible(place.attended_token)} ({place.attends_to})"),
        (Column("weight", "number"), lambda place: format_percent(place.weight)),
        *([sink] if sinks else []),
        (Column("writes", "text", min_width=20), lambda place: _list(place.writes)),
    )


def _list(tokens: Sequence[ScoredToken]) -> str:
    return "  ".join(visible(token.text) for token in tokens)


SHOWN_PAIRS = 10  # pairs of each kind, unless everything is shown
EVERYTHING = 100

Shares = tuple[tuple[float | None, ...], ...]  # (later heads, earlier heads); None: not earlier


@dataclass(frozen=True)
class HeadName:
    layer: int
    head: int


@dataclass(frozen=True)
class Composition(View):
    """For pairs of heads, how far one reads from where an earlier one writes: 1 is all of it."""

    SCHEMA = "glassformer.composition/1"

    model: str
    baseline: float  # of heads that have nothing to do with each other: 1 / sqrt(hidden)
    subtracted: bool  # whether the baseline was subtracted
    later: tuple[HeadName, ...]  # those that read
    earlier: tuple[HeadName, ...]  # those that write
    query: Shares
    key: Shares
    value: Shares

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: which heads read what earlier heads write"
        subtracted = "already subtracted" if self.subtracted else "not subtracted (--baseline)"
        parts: list[PagePart] = [
            Paragraph(
                "composition scores from weights: 1 if a head reads just what the earlier one writes; of unrelated heads "
                f"about {self.baseline:.3f}, {subtracted}",
                "dim",
            ),
        ]
        for kind, name in (("query", "Q"), ("key", "K"), ("value", "V")):
            pairs = self.strongest(kind, EVERYTHING if everything else SHOWN_PAIRS)
            most = max((abs(share) for _, _, share in pairs), default=1.0) or 1.0
            rows = tuple(
                TableRow(
                    (
                        f"{later.layer}.{later.head}",
                        f"{earlier.layer}.{earlier.head}",
                        f"{share:.3f}",
                        max(share / most, 0.0),
                    )
                )
                for later, earlier, share in pairs
            )
            columns = (Column("head"), Column("reads"), Column("score", "number"), Column("", "bar", priority=5))
            parts += [Heading(f"{name}-composition: by its {kind}"), _grid(self, kind), Table(columns, rows)]
        return Page.titled(title, *parts)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each pair of heads."""
        scores = [[*row] for row in zip(self.query, self.key, self.value, strict=True)]
        return [
            {"later_layer": later.layer, "later_head": later.head, "earlier_layer": earlier.layer,
             "earlier_head": earlier.head, "query": query, "key": key, "value": value}
            for later, rows in zip(self.later, scores, strict=True)
            for earlier, query, key, value in zip(self.earlier, *rows, strict=True)
            if query is not None
        ]  # fmt: skip

    def strongest(self, kind: str, count: int = SHOWN_PAIRS) -> list[tuple[HeadName, HeadName, float]]:
        """The pairs with the highest scores: who reads, who wrote, the score; `kind`: 'query', 'key' or 'value'."""
        shares: Shares = {"query": self.query, "key": self.key, "value": self.value}[kind]
        pairs = (
            (later, earlier, share)
            for later, row in zip(self.later, shares, strict=True)
            for earlier, share in zip(self.earlier, row, strict=True)
            if share is not None
        )
        return sorted(pairs, key=lambda pair: -pair[2])[:count]

    def __repr__(self) -> str:
        return f"Composition({len(self.later)} heads with {len(self.earlier)} before them)"


def _grid(view: Composition, kind: str) -> Grid:
    """The strongest pair of each two layers."""
    best: dict[tuple[int, int], float] = {}
    for later, earlier, share in view.strongest(kind, len(view.later) * len(view.earlier)):
        best.setdefault((later.layer, earlier.layer), share)
    rows, columns = sorted({head.layer for head in view.later}), sorted({head.layer for head in view.earlier})
    most = max((abs(share) for share in best.values()), default=1.0) or 1.0
    values = tuple(tuple(best[row, column] / most if (row, column) in best else None for column in columns) for row in rows)
    return Grid(tuple(map(str, rows)), tuple(map(str, columns)), values)


MAX_PRODUCTS = 10**13  # multiplications


def _triangles(maps: Floats) -> Floats:
    """The small factors of tall matrices: as long as these in every direction. (heads, n, n) of (heads, many, n)."""
    return np.asarray(np.linalg.qr(maps, mode="r"), np.float32)


def _writes(weights: AttentionWeights) -> Floats:
    """What stands for each head's OV on the right: (heads, hidden, head_size), each of norm 1."""
    values = weights.input_map(2)
    return _of_norm_1(weights.output_map @ _triangles(values.swapaxes(1, 2)).swapaxes(1, 2))


def _reads(weights: AttentionWeights) -> Floats:
    """What stands for each head's maps on the left, by queries, keys and values: (3, heads, head_size, hidden)."""
    queries, keys, values = (weights.input_map(source) for source in range(3))
    by_query = _triangles(keys.swapaxes(1, 2)) @ queries
    by_key = _triangles(queries.swapaxes(1, 2)) @ keys
    by_value = _triangles(weights.output_map) @ values
    maps = [_of_norm_1(each) for each in (by_query, by_key, by_value)]
    size = max(each.shape[1] for each in maps)  # keys and values may differ in theirs; rows of zeros add to no norm
    return np.stack([np.pad(each, ((0, 0), (0, size - each.shape[1]), (0, 0))) for each in maps])


def _of_norm_1(maps: Floats) -> Floats:
    norms = np.sqrt((maps.astype(np.float64) ** 2).sum((-2, -1), keepdims=True))
    return np.asarray(maps / np.where(norms > 0, norms, 1.0), np.float32)


def _shares(reads: Floats, writes: Floats) -> Floats:
    """The norms of all products: (3, heads that read, heads that write)."""
    kinds, later, size, hidden = reads.shape
    earlier, _, width = writes.shape
    products = reads.reshape(-1, hidden) @ writes.swapaxes(0, 1).reshape(hidden, -1)
    squares = (products * products).reshape(kinds, later, size, earlier, width).sum((2, 4), dtype=np.float64)
    return np.asarray(np.sqrt(squares))


BEST = 5  # tokens of each row
COPIED = 12  # tokens, if none are named
MAX_TOKENS = 256
LayerArgument = Annotated[int, about("The head's layer.", minimum=0)]
HeadArgument = Annotated[int, about("The head.", minimum=0)]
OF_TOKENS = "Instead of a text: a token, by text or #id; repeatable."
TokensArgument = Annotated[
    Sequence[int | str] | None, about(OF_TOKENS, "--token", "-t", served_minimum=0, served_items=(1, MAX_TOKENS))
]
MAX_BYTES = 1_000_000_000  # of values: of a text, or of what earlier heads write, if all layers are compared
DistanceArgument = Annotated[int, about("How many tokens back keys stand, with RoPE; 0: no positions.", minimum=0)]
BestArgument = Annotated[int, about("How many tokens to list.", minimum=1, served_maximum=20)]


@checked_class
@dataclass(frozen=True)
class Circuits:
    """A model's heads, from its weights."""

    model: ModelLike

    @operation(owner="model.circuits", route="circuit", verb="circuit", passes=False)
    def head(
        self,
        layer: LayerArgument,
        head: HeadArgument,
        tokens: TokensArgument = None,
        *,
        distance: DistanceArgument = 0,
        best: BestArgument = BEST,
    ) -> HeadCircuit:
        """Show what a head looks for and what it writes: of some tokens, or of those that it copies most."""
        size = np.zeros(self.model.config.vocab_size, np.float32)
        ids = None if tokens is None else [resolve_token_id(self.model, token, size) for token in tokens]
        return head_circuit(self.model, layer, head, ids, distance=distance, best=best)

    @operation(owner="model.circuits", route="composition", verb="circuit", chosen_by=("composition",), passes=False)
    def composition(
        self,
        layer: Annotated[int | None, about("Only for the heads of this layer that read.", served_minimum=0)] = None,
        *,
        baseline: Annotated[bool, about("Subtract the score of unrelated heads.")] = False,
        progress: Progress | None = None,
    ) -> Composition:
        """Show how much each head reads of what each earlier head writes, by queries, keys and values."""
        model = self.model
        blocks = [block for block in range(model.blueprint.blocks) if reads_linearly(model, block)]
        layers = {block: AttentionWeights(model, block) for block in blocks}
        if layer is not None:
            AttentionWeights(model, layer)  # refuses one that is not there
        reading = [block for block in blocks[1:] if layer in (None, block)]
        if not reading:
            raise InputError(f"no head comes before layer {layer or 0} of {model.name}, so none composes with one.")
        hidden, widths = model.config.hidden_size, {block: weights.op.width for block, weights in layers.items()}
        size = sum(widths.values())
        before = {block: blocks[: blocks.index(block)] for block in reading}  # the layers whose heads it may read
        products = 3 * hidden * sum(widths[block] * sum(widths[other] for other in before[block]) for block in reading)
        if 4 * hidden * size > MAX_BYTES * (1 if layer is None else 4) or products > MAX_PRODUCTS:
            raise InputError(
                f"all heads of {model.name} are {products / 1e12:.1f} trillion products to compare, which is too many here. "
                "Name a layer that reads."
            )
        written = {block: _writes(layers[block]) for block in before[reading[-1]]}
        earlier = tuple(HeadName(block, head) for block in written for head in range(layers[block].heads))
        later = tuple(HeadName(block, head) for block in reading for head in range(layers[block].heads))
        base = 1 / math.sqrt(hidden)
        grids = np.full((3, len(later), len(earlier)), np.nan)
        row = 0
        for done, block in enumerate(reading, 1):
            maps, column = _reads(layers[block]), 0
            heads = layers[block].heads
            for other in before[block]:
                shares = _shares(maps, written[other])
                grids[:, row : row + heads, column : column + shares.shape[-1]] = shares - (base if baseline else 0)
                column += shares.shape[-1]
            row += heads
            if progress is not None:
                progress(done, len(reading))
        query, key, value = (
            tuple(tuple(None if math.isnan(share) else share for share in line) for line in grid.tolist()) for grid in grids
        )
        return Composition(model.name, base, baseline, later, earlier, query, key, value)


@operation(is_property=True)
def circuits(model: ModelLike) -> Circuits:
    """Its heads from weights alone: `head(layer, head)` in tokens, and `composition()` with earlier heads."""
    return Circuits(model)


def head_circuit(
    model: ModelLike, layer: int, head: int, ids: Sequence[int] | None = None, *, distance: int = 0, best: int = BEST
) -> HeadCircuit:
    check_unembeds(model)
    weights = AttentionWeights(model, layer)
    weights.check_head(head)
    if not 1 <= best <= MAX_TOKENS:
        raise InputError(f"best is {best}; from 1 to {MAX_TOKENS} tokens can be shown.")
    if not 0 <= distance < model.config.context:
        raise InputError(f"distance is {distance}; keys stand from 0 to {model.config.context - 1} tokens back.")
    chosen = None if ids is None else list(dict.fromkeys(ids))
    if chosen is not None and not 0 < len(chosen) <= MAX_TOKENS:
        raise InputError(f"a circuit is shown for 1 to {MAX_TOKENS} different tokens, not {len(chosen)}.")
    output = weights.final_map(head)
    copying, own_logits = _copying(model, weights, head, output)
    chosen = np.argsort(-own_logits, kind="stable")[:COPIED].tolist() if chosen is None else chosen
    x = embeddings(model, chosen)
    written = weights.values(x, head) @ output.T
    own_scores = (written * unembeddings(model, chosen)).sum(-1)
    writes = BestTokens(best)
    ranks = np.ones(len(chosen), np.int64)
    for rows, block in unembedding_blocks(model):
        logits = np.asarray(written @ block.T, np.float32)
        writes.add(rows, logits)
        mine = np.array(chosen)[:, None] == np.array(rows)  # which differs from its score by rounding, and does not count
        ranks += ((logits > own_scores[:, None]) & ~mine).sum(1)
    looks, queries = BestTokens(best), weights.queries(x, head, distance) * np.float32(weights.op.options["scale"])
    cap = weights.op.options["softcap"]
    for rows, block in embedding_blocks(model):
        scores = np.asarray(queries @ weights.keys(block, head).T, np.float32)
        looks.add(rows, scores if cap is None else np.asarray(cap * np.tanh(scores / cap), np.float32))
    texts = [token_text(model.tokenizer, token_id) for token_id in chosen]
    columns = (chosen, texts, looks.tokens(model), writes.tokens(model), own_scores.tolist(), ranks.tolist())
    tokens = tuple(TokenCircuit(*row) for row in zip(*columns, strict=True))
    return HeadCircuit(model.name, layer, head, weights.group(head), distance, copying, tokens, ids is not None, ())


@operation(
    route="circuit",
    chosen_by=("prompt",),
    example='glass circuit --layer 23 --head 4 --raw "The capital of France is"   ·   '
    "glass circuit --layer 23 --composition --baseline",
)
def circuit(
    reading: Activations,
    layer: LayerArgument,
    head: HeadArgument,
    *,
    distance: DistanceArgument = 0,
    best: BestArgument = BEST,
) -> HeadCircuit:
    """Show what a head looks for and writes, for the tokens of a text, and what it wrote at each position."""
    found = head_circuit(reading.model, layer, head, reading.ids, distance=distance, best=best)
    return replace(found, positions=_writes_by_position(reading, layer, head, best))


def _writes_by_position(reading: Activations, layer: int, head: int, best: int) -> tuple[PositionWrites, ...]:
    model, texts = reading.model, reading.texts
    weights, scores_op = AttentionWeights(model, layer), model.blueprint.ops[-1]
    heads, pattern_site = weights.op.inner_site("heads"), f"blocks.{layer}.attention.pattern"
    sites = direct_sites(model.blueprint, weights.op_index) | {heads, "final"}
    if (size := reading.cost(*sites, pattern_site).bytes) > MAX_BYTES:
        raise InputError(f"the attention of {len(texts)} tokens is {size / 1e9:.1f} GB of values. Shorten the text.")
    values = stream_values(reading, range(len(texts)), sites)
    written = weights.final_states(head, values[heads][:, head], values)
    cap, scale = scores_op.options.get("softcap"), scores_op.options.get("scale", 1.0)
    writes = BestTokens(best)
    for rows, block in unembedding_blocks(model):
        logits = written @ block.T
        if cap is not None:
            capped = cap * np.tanh(values["final"] @ block.T * np.float32(scale) / cap)
            logits = np.asarray(logits * cap_factors(scores_op, capped), np.float32)
        writes.add(rows, logits)
    pattern = reading.at(pattern_site)[head]
    sinks = sink_weights(pattern).tolist() if pattern_site in sink_sites(model.blueprint) else [None] * len(texts)
    columns = zip(pattern.argmax(-1).tolist(), writes.tokens(model), sinks, strict=True)
    return tuple(
        PositionWrites(index, texts[index], place, texts[place], float(pattern[index, place]), tokens, sink)
        for index, (place, tokens, sink) in enumerate(columns)
    )


def _copying(model: ModelLike, weights: AttentionWeights, head: int, output: Floats) -> tuple[float, Floats]:
    """The copying score, and what reading each token adds to its own logit.

    The map from tokens to logits is (logits, head_size) times (head_size, tokens); its eigenvalues, but for zeros, are those
    of the same factors the other way round. Biases are no part of it.
    """
    small, gains = np.zeros((output.shape[-1],) * 2), []
    bias = weights.values(np.zeros((1, len(output)), np.float32), head)
    for (_, tokens), (_, logits) in zip(embedding_blocks(model), unembedding_blocks(model), strict=True):
        values, worth = weights.values(tokens, head) - bias, logits @ output  # (block, head_size) both
        small += values.T.astype(np.float64) @ worth
        gains.append((values * worth).sum(-1))
    eigenvalues = np.linalg.eigvals(small)
    total = float(np.abs(eigenvalues).sum())
    return float(eigenvalues.sum().real) / total if total else 0.0, np.concatenate(gains)


@dataclass
class BestTokens:
    """The best few tokens of each row, of scores that come in blocks of the vocabulary."""

    count: int
    _ids: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _scores: list[Floats] = field(default_factory=list)

    def add(self, rows: range, scores: Floats) -> None:
        few = np.argpartition(-scores, min(self.count, len(rows)) - 1, 1)[:, : self.count]
        self._ids.append(few + rows.start)
        self._scores.append(np.take_along_axis(scores, few, 1))

    def tokens(self, model: ModelLike) -> list[tuple[ScoredToken, ...]]:
        ids, scores = np.concatenate(self._ids, 1), np.concatenate(self._scores, 1)
        order = np.lexsort((ids, -scores), 1)[:, : self.count]
        return [
            tuple(
                ScoredToken(int(token_id), token_text(model.tokenizer, int(token_id)), float(score))
                for token_id, score in row
            )
            for row in np.stack((np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)), -1)
        ]
