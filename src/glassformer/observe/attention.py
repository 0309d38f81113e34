"""Attention: how much each token took from each other one, in one head, on average, or through all layers.

Rollout multiplies the layers up: each layer's mean over heads, averaged with the identity for the residual stream (Abnar and
Zuidema, 2020). These are weights, not reasons: a token can be looked at hard and change nothing. What changes the answer is
found by changing something: see `changed`.

A sink takes what is left of each row's weights, and gives nothing for it. A rollout treats it as a place that is never
left: what a layer gave to it stays there, so that a row still sums to one with its column.

Shapes: weights (queries, keys), sink (queries); the two of a row sum to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint
from glassformer.ground.errors import InputError, did_you_mean
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.sites import ENCODER
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats
from glassformer.ops.attend import Attend
from glassformer.views.attention import NOTE, AttentionKind, AttentionMap, Heads, HeadSummary, shades, with_sink
from glassformer.views.attention_maps import AttentionMaps
from glassformer.views.tokens import Token

SITES = {
    "self": "blocks.{}.attention.pattern",
    "cross": "blocks.{}.cross.pattern",
    "encoder": ENCODER + "blocks.{}.attention.pattern",
}
MAX_DRAWN = 96  # tokens of a text whose maps are drawn
ROLLOUT_NOTE = " Rollout tends to end at the first token, where most heads of a decoder rest when they have nothing to do."
MAX_BYTES = 2_000_000_000  # of a rollout
MAX_MAPS_BYTES = 16_000_000  # of all heads' maps, a byte for each weight
KindArgument = Annotated[AttentionKind, about("self; for an encoder-decoder also cross or encoder.")]


@operation(route="attention")
def attention(
    reading: Activations,
    layer: Annotated[int | None, about("Which layer; -1 is the last. By default the mean of all.", "--layer", "-l")] = None,
    head: Annotated[int | None, about("Which of its heads; by default their mean.")] = None,
    *,
    kind: KindArgument = "self",
    rollout: Annotated[bool, about("Attention rollout through all layers.")] = False,
    progress: Progress | None = None,
) -> AttentionMap:
    """Show who attended to whom: one head, a layer's mean, all layers' mean, or their rollout.

    `.of(token)` is one row of it.
    """
    layers, heads = layers_and_heads(reading, kind)
    layer = None if layer is None else checked_index(layer, layers, "layer")
    head = None if head is None else checked_index(head, heads, "head")
    if head is not None and layer is None:
        raise InputError(f"head {head} of which layer? Name one of 0 to {layers - 1}.")
    if rollout and (layer is not None or kind == "cross"):
        raise InputError(
            "a rollout goes through all layers of one stack. Leave out the layer, the head and cross-attention."
        )
    if layer is not None:
        pattern = reading.at(SITES[kind].format(layer))
        weights = pattern.mean(0) if head is None else pattern[head]
    else:
        weights = _across_layers(reading, kind, layers, rollout, progress)
    queries, keys = (tuple(token.text for token in tokens) for tokens in queries_and_keys(reading, kind))
    note = NOTE + ROLLOUT_NOTE if rollout else NOTE
    sinks = sink_sites(reading.model.blueprint)
    of_layers = range(layers) if layer is None else [layer]
    sink = sink_weights(weights) if any(SITES[kind].format(number) in sinks for number in of_layers) else None
    return AttentionMap(reading.model.name, kind, layer, head, rollout, queries, keys, weights, note, sink)


def sink_sites(blueprint: Blueprint) -> frozenset[str]:
    """The patterns whose heads have a sink."""
    return frozenset(op.inner_site("pattern") for op in blueprint.ops_of(Attend) if op.weights)


def sink_weights(pattern: Floats) -> Floats:
    """What sinks took of the rows of a pattern: (…, queries)."""
    return np.asarray(np.clip(1 - pattern.sum(-1, dtype=np.float64), 0.0, 1.0), np.float32)


def _across_layers(
    reading: Activations, kind: AttentionKind, layers: int, rollout: bool, progress: Progress | None
) -> Floats:
    """All layers' means over heads, averaged, or rolled out."""
    queries, keys = (len(tokens) for tokens in queries_and_keys(reading, kind))
    count = layers if rollout else 1
    if (size := count * queries * keys * 4) > MAX_BYTES:
        raise InputError(
            f"a rollout over {queries:,} tokens would hold {size / 1e9:.1f} GB. Shorten the text, or name a layer."
        )
    maps = np.zeros((count, queries, keys), np.float32)
    for chunk in reading.chunks(*(SITES[kind].format(number) for number in range(layers)), progress=progress):
        for site, value in chunk.sites.items():
            number = _layer(site)
            start = 0 if kind == "encoder" else chunk.start
            mean = value.mean(0)
            maps[number if rollout else 0, start : start + mean.shape[0], : mean.shape[1]] += mean
    if not rollout:
        mean_map: Floats = maps[0] / layers
        return mean_map
    product: Floats = np.eye(queries, dtype=np.float32)
    for layer_map in maps:
        product = 0.5 * (layer_map @ product) + 0.5 * product
    return product


@operation()
def heads(reading: Activations, *, kind: KindArgument = "self", progress: Progress | None = None) -> Heads:
    """Show all heads of all layers, each in a few numbers: where it mostly looks, and how widely."""
    layers, count = layers_and_heads(reading, kind)
    sums, counts, sinks = np.zeros((layers, count, 7)), np.zeros(7), sink_sites(reading.model.blueprint)
    queries, keys = queries_and_keys(reading, kind)
    ids = np.array([token.id for token in queries])
    small = max(len(queries), len(keys)) <= MAX_DRAWN
    maps = np.zeros((layers, count, len(queries), len(keys) + bool(sinks)), np.uint8) if small else None
    for chunk in reading.chunks(*(SITES[kind].format(number) for number in range(layers)), progress=progress):
        start = 0 if kind == "encoder" else chunk.start
        _, rows, columns = next(iter(chunk.sites.values())).shape
        targets = _targets(start, rows, columns, None if kind == "cross" else ids)
        counts += [rows - (start == 0), *targets.any(-1).sum(-1), rows - (start == 0)]
        for site, value in chunk.sites.items():
            sink = sink_weights(value) if site in sinks else None
            sums[_layer(site)] += _sums(value, sink, targets, start)
            if maps is not None:
                _draw(maps[_layer(site)], value, sink, start)
    summaries = []
    for layer, head in np.ndindex(layers, count):
        means = (float(total / n) if n else None for total, n in zip(sums[layer, head], counts, strict=True))
        entropy, first, previous, itself, duplicate, induction, sink_share = means
        own_sink = sink_share if SITES[kind].format(layer) in sinks else None
        shares = (first, previous, itself, duplicate, induction, own_sink)
        summaries.append(HeadSummary(layer, head, entropy or 0.0, *shares))
    texts, repeats = tuple(token.text for token in queries), (int(counts[4]), int(counts[5]))
    return Heads(reading.model.name, kind, texts, layers, count, tuple(summaries), repeats, maps=maps)


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
    sites = [SITES[kind].format(number) for number in held]
    maps, sinks = np.zeros((len(held), count, len(queries), len(keys)), np.uint8), sink_sites(reading.model.blueprint)
    sink_maps = np.zeros(maps.shape[:-1], np.uint8) if sinks.intersection(sites) else None
    for chunk in reading.chunks(*sites):
        for site, value in chunk.sites.items():
            start = 0 if kind == "encoder" else chunk.start
            _, rows, columns = value.shape
            own = _layer(site) - start_layer, slice(None), slice(start, start + rows)
            maps[(*own, slice(columns))] = np.round(255 * value).astype(np.uint8)
            if sink_maps is not None and site in sinks:
                sink_maps[own] = np.round(255 * sink_weights(value)).astype(np.uint8)
    masks = {op.inner_site("pattern"): op.options for op in reading.model.blueprint.ops_of(Attend)}
    causal = kind == "self" and bool(masks[sites[0]]["causal"])
    windows = tuple(masks[site]["window"] for site in sites)
    return AttentionMaps(
        reading.model.name, kind, _kinds(reading), layers, count, start_layer, queries, keys, causal, windows,
        maps.tobytes(), sinks=None if sink_maps is None else sink_maps.tobytes(),
    )  # fmt: skip


def _kinds(reading: Activations) -> tuple[AttentionKind, ...]:
    return ("self", "cross", "encoder") if reading.model.blueprint.encoder_blocks else ("self",)


def _layer(site: str) -> int:
    return int(site.removeprefix(ENCODER).split(".")[1])


def _draw(maps: npt.NDArray[np.uint8], weights: Floats, sink: Floats | None, start: int) -> None:
    """A chunk's rows of a layer's maps; the sink is their last column."""
    _, queries, keys = weights.shape
    drawn = np.round(255 * shades(with_sink(weights, sink))).astype(np.uint8)
    maps[:, start : start + queries, :keys] = drawn[..., :keys]
    if sink is not None:
        maps[:, start : start + queries, -1] = drawn[..., -1]


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
    """How many layers and heads there are to look at."""
    blueprint = reading.model.blueprint
    if kind not in SITES:
        raise InputError(f"there is no attention called {kind!r}.{did_you_mean(kind, SITES)} Kinds: {', '.join(SITES)}.")
    if kind != "self" and not blueprint.encoder_blocks:
        raise InputError(f"{reading.model.name} is no encoder-decoder: it has self-attention only.")
    layers = blueprint.encoder_blocks if kind == "encoder" else blueprint.blocks
    heads = blueprint.sites[SITES[kind].format(0)][1]
    assert isinstance(heads, int)
    return layers, heads


def queries_and_keys(reading: Activations, kind: AttentionKind) -> tuple[Sequence[Token], Sequence[Token]]:
    """The tokens that look, and those that are looked at."""
    text, source = reading.tokens, reading.source_tokens
    return {"self": (text, text), "cross": (text, source), "encoder": (source, source)}[kind]


def checked_index(number: int, count: int, what: str) -> int:
    """A layer or a head, counted from the end if negative; refused if there is none."""
    if isinstance(number, bool) or not isinstance(number, int) or not -count <= number < count:
        raise InputError(f"there is no {what} {number!r}: this model has {count}, 0 to {count - 1}.")
    return number % count
