"""QK and OV circuits of a head, in tokens (Elhage et al. 2021): what it looks for, and what it writes of what it reads.

Of a head's two maps through the vocabulary, QK scores a pair of query and key, and OV says what reading a token adds to each
logit. Both are of the vocabulary's size squared, and never built: of each, a few rows are computed, in blocks of the
vocabulary. The eigenvalues of OV are those of a small matrix, as its rank is a head's size.

A token is its embedding without a position, through the norm, projection and bias that the head has. What is written goes
through the weights of the norms behind the head, the final one among them. What they divide by is left out, and so is a soft
cap: both depend on the rest of the stream. So logits are right up to a factor that all tokens share. In a text the stream is
known, and what a head wrote at a position is its share in the logits there, as `attribution` has it.

Shapes: a token's vectors (tokens, head_size); scores (tokens, vocabulary in blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.attention import sink_sites, sink_weights
from glassformer.observe.attribution import cap_factors, resolve_token_id
from glassformer.observe.composition import composition
from glassformer.observe.head_weights import (
    AttentionWeights,
    check_unembeds,
    embedding_blocks,
    embeddings,
    unembedding_blocks,
    unembeddings,
)
from glassformer.observe.linear_walk import direct_sites, stream_values
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.tokens import token_text
from glassformer.views.circuit import HeadCircuit, PositionWrites, ScoredToken, TokenCircuit
from glassformer.views.composition import Composition

BEST = 5  # tokens of each row
COPIED = 12  # tokens, if none are named
MAX_TOKENS = 256
MAX_BYTES = 1_000_000_000  # of a text's values
DistanceArgument = Annotated[int, about("How many tokens back keys stand, with RoPE; 0: no positions.", minimum=0)]
BestArgument = Annotated[int, about("How many tokens to list.", minimum=1, served_maximum=20)]


@checked_class
@dataclass(frozen=True)
class Circuits:
    """A model's heads, from its weights."""

    model: ModelLike

    def head(
        self, layer: int, head: int, tokens: Sequence[int | str] | None = None, *, distance: int = 0, best: int = BEST
    ) -> HeadCircuit:
        """What a head looks for and what it writes: of some tokens, or of those that it copies most.

        `distance`: how many tokens back keys stand, for heads with RoPE; 0: no positions. `best`: how many tokens to list.
        """
        size = np.zeros(self.model.config.vocab_size, np.float32)
        ids = None if tokens is None else [resolve_token_id(self.model, token, size) for token in tokens]
        return head_circuit(self.model, layer, head, ids, distance=distance, best=best)

    @operation(owner="model.circuits", route="composition", passes=False)
    def composition(
        self,
        layer: Annotated[int | None, about("Only for the heads of this layer that read.", served_minimum=0)] = None,
        *,
        baseline: Annotated[bool, about("Subtract the score of unrelated heads.")] = False,
        progress: Progress | None = None,
    ) -> Composition:
        """Show how much each head reads of what each earlier head writes, by queries, keys and values."""
        return composition(self.model, layer, baseline=baseline, progress=progress)


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
    copying, own = _copying(model, weights, head, output)
    chosen = np.argsort(-own, kind="stable")[:COPIED].tolist() if chosen is None else chosen
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
    texts = [token_text(model.tokenizer, number) for number in chosen]
    columns = (chosen, texts, looks.tokens(model), writes.tokens(model), own_scores.tolist(), ranks.tolist())
    tokens = tuple(TokenCircuit(*row) for row in zip(*columns, strict=True))
    return HeadCircuit(model.name, layer, head, weights.group(head), distance, copying, tokens, ids is not None, ())


@operation()
def circuit(
    reading: Activations,
    layer: Annotated[int, about("The head's layer.", minimum=0)],
    head: Annotated[int, about("The head.", minimum=0)],
    *,
    distance: DistanceArgument = 0,
    best: BestArgument = BEST,
) -> HeadCircuit:
    """Show what a head looks for and writes, for the tokens of a text, and what it wrote at each position."""
    found = head_circuit(reading.model, layer, head, reading.ids, distance=distance, best=best)
    return replace(found, positions=_positions(reading, layer, head, best))


def _positions(reading: Activations, layer: int, head: int, best: int) -> tuple[PositionWrites, ...]:
    model, texts = reading.model, reading.texts
    weights, scores_op = AttentionWeights(model, layer), model.blueprint.ops[-1]
    heads, pattern_site = weights.op.inner_site("heads"), f"blocks.{layer}.attention.pattern"
    sites = direct_sites(model.blueprint, weights.number) | {heads, "final"}
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
        PositionWrites(at, texts[at], place, texts[place], float(pattern[at, place]), tokens, sink)
        for at, (place, tokens, sink) in enumerate(columns)
    )


def _copying(model: ModelLike, weights: AttentionWeights, head: int, output: Floats) -> tuple[float, Floats]:
    """The copying score, and what reading each token adds to its own logit.

    The map from tokens to logits is (logits, head_size) times (head_size, tokens); its eigenvalues, but for zeros, are those
    of the same factors the other way round. Biases are no part of it.
    """
    small, own = np.zeros((output.shape[-1],) * 2), []
    bias = weights.values(np.zeros((1, len(output)), np.float32), head)
    for (_, tokens), (_, logits) in zip(embedding_blocks(model), unembedding_blocks(model), strict=True):
        values, worth = weights.values(tokens, head) - bias, logits @ output  # (block, head_size) both
        small += values.T.astype(np.float64) @ worth
        own.append((values * worth).sum(-1))
    eigenvalues = np.linalg.eigvals(small)
    total = float(np.abs(eigenvalues).sum())
    return float(eigenvalues.sum().real) / total if total else 0.0, np.concatenate(own)


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
            tuple(ScoredToken(int(number), token_text(model.tokenizer, int(number)), float(score)) for number, score in row)
            for row in np.stack((np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)), -1)
        ]
