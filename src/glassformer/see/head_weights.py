"""A head as matrices: what it reads of the stream and writes into it, read off the blueprint and its weights.

Fused projections, shared keys and values, biases, norms of heads and adapters all follow from the ops, so nothing here knows
a family. There are two ways through the same ops: `_forward` takes vectors as they are, with norms and biases; `_linear_map`
gives the matrix that is left when each norm is only its weight (and, for layer norm, the removal of the mean).

Shapes: x (rows, hidden); heads (rows, heads, head_size); a map (outputs, inputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glassformer.blueprints import Op
from glassformer.ground.errors import InputError
from glassformer.ops.embed import Embed
from glassformer.ops.op import TokenContext
from glassformer.ops.position import Position
from glassformer.ops.token_mixer import TokenMixer
from glassformer.see.linear_walk import attention_op, direct_effect, vocabulary_blocks
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats

ROPE_LENGTH = 0  # what frequencies that follow the text's length are taken for: a short one


def reads_linearly(model: ModelLike, block: int) -> bool:
    """Whether a block's heads read the stream through matrices alone."""
    index = attention_op(model.blueprint, block)
    op = None if index is None else model.blueprint.ops[index]
    return isinstance(op, TokenMixer) and op.linear_values


@dataclass(frozen=True)
class AttentionWeights:
    """The heads of one block's attention, out of a model's weights."""

    model: ModelLike
    block: int

    def __post_init__(self) -> None:
        self.model.config.check_equations("a head's circuits")
        self.model.blueprint.check_one_stream("a head's circuits")
        blocks = self.model.blueprint.blocks
        if not 0 <= self.block < blocks:
            raise InputError(f"there is no layer {self.block}; {self.model.name} has {blocks}, from 0 on.")
        if attention_op(self.model.blueprint, self.block) is None:
            raise InputError(
                f"layer {self.block} of {self.model.name} has no heads: its tokens do not attend to each other. Take a "
                "layer that attends."
            )
        if not reads_linearly(self.model, self.block):
            raise InputError(
                f"layer {self.block} keeps a state: what its heads read comes out of a convolution, so that no matrix says "
                "what they look for. Look at its effective attention, or take a layer that attends."
            )

    @cached_property
    def op_index(self) -> int:
        index = attention_op(self.model.blueprint, self.block)
        assert index is not None
        return index

    @property
    def op(self) -> Op:
        return self.model.blueprint.ops[self.op_index]

    @property
    def heads(self) -> int:
        return self.op.head_shape[0]

    def check_head(self, head: int) -> None:
        if not 0 <= head < self.heads:
            raise InputError(f"there is no head {head} in layer {self.block}, which has {self.heads}, from 0 on.")

    def group(self, head: int) -> int:
        """Which head of the keys and values a head shares."""
        return head // (self.heads // self.model.blueprint.ops[self.op.inputs[1]].head_shape[0])

    def queries(self, x: Floats, head: int, position: int = 0) -> Floats:
        """What a head looks for, of the stream's vectors: (rows, head_size)."""
        return _forward(self.model, self.op.inputs[0], x, position)[:, head]

    def keys(self, x: Floats, head: int, position: int = 0) -> Floats:
        return _forward(self.model, self.op.inputs[1], x, position)[:, self.group(head)]

    def values(self, x: Floats, head: int) -> Floats:
        return _forward(self.model, self.op.inputs[2], x, 0)[:, self.group(head)]

    def input_map(self, source: int) -> Floats:
        """From the stream to queries (0), keys (1) or values (2): (heads, head_size, hidden), one for each head."""
        index = self.op.inputs[source]
        groups, size = self.model.blueprint.ops[index].head_shape
        matrix = _linear_map(self.model, index).reshape(-1, groups, size)
        return np.repeat(np.ascontiguousarray(matrix.transpose(1, 2, 0)), self.heads // groups, 0)

    @cached_property
    def output_map(self) -> Floats:
        """From each head to what it adds to the stream: (heads, hidden, head_size)."""
        ops = self.model.blueprint.ops
        updates = (op.inputs[1] for op in ops[self.op_index :] if op.adds_to_stream)
        update = next(update for update in updates if _follows(ops, update, self.op_index))
        matrix = _linear_map(self.model, update, self.op_index)
        return np.ascontiguousarray(matrix.reshape(self.heads, -1, matrix.shape[-1]).swapaxes(1, 2))

    def final_map(self, head: int) -> Floats:
        """From a head to the final state, with the weights of all norms between folded in: (hidden, head_size)."""
        _, size = self.op.head_shape
        return self.final_states(head, np.eye(size, dtype=np.float32)).T

    def final_states(self, head: int, outputs: Floats, values: Mapping[str, Floats] | None = None) -> Floats:
        """What a head's outputs (rows, head_size) are in the final state, times the scale of scores: (rows, hidden).

        `values`: as in `direct_effect`.
        """
        heads = np.zeros((len(outputs), *self.op.head_shape))
        heads[:, head] = outputs
        scale = float(self.model.blueprint.ops[-1].options.get("scale", 1.0))
        return np.asarray(
            direct_effect(self.model, self.op_index, heads.reshape(len(heads), -1), values) * scale, np.float32
        )


def embedding_blocks(model: ModelLike) -> Iterator[tuple[range, Floats]]:
    """Every token as it enters the first block, without a position; a block of the vocabulary at a time."""
    table = _embedding_chain(model)[0].weights[0].name
    for rows, block in vocabulary_blocks(model, table):
        yield rows, _embedded(model, block)


def embeddings(model: ModelLike, ids: list[int]) -> Floats:
    """Some tokens as they enter the first block, without a position."""
    table = _embedding_chain(model)[0].weights[0].name
    rows = [model.weight(table, token_id) for token_id in ids]
    return _embedded(model, np.stack([row for row in rows if row is not None]))


def unembedding_blocks(model: ModelLike) -> Iterator[tuple[range, Floats]]:
    """What each token's logit takes of the final state: (tokens, hidden)."""
    return vocabulary_blocks(model, model.blueprint.ops[-1].weights[0].name)


def unembeddings(model: ModelLike, ids: list[int]) -> Floats:
    """What some tokens' logits take of the final state."""
    rows = [model.weight(model.blueprint.ops[-1].weights[0].name, token_id) for token_id in ids]
    return np.stack([row for row in rows if row is not None])


def check_unembeds(model: ModelLike) -> None:
    if not model.writes:
        raise InputError(f"{model.name} does not score the next token, so what its heads write has no names.")


def _embedding_chain(model: ModelLike) -> list[Op]:
    """From the table of tokens to what enters the first block."""
    ops = model.blueprint.ops
    index = next(index for index, op in enumerate(ops) if op.site == "embedding")
    chain = [ops[index]]
    while chain[-1].inputs:
        chain.append(ops[chain[-1].inputs[0]])
    return chain[::-1]


def _embedded(model: ModelLike, rows: Floats) -> Floats:
    for op in _embedding_chain(model):
        if isinstance(op, Embed):
            rows = op.scaled(rows)
        elif not isinstance(op, Position):  # a token has its vector wherever it stands
            rows = op.value([rows], TokenContext(model))
    return rows


def _follows(ops: Sequence[Op], index: int, start: int) -> bool:
    """Whether an op's result comes from another's."""
    return index == start or (index > start and any(_follows(ops, source, start) for source in ops[index].inputs))


def _is_stream(op: Op) -> bool:
    site = op.site or ""
    return op.adds_to_stream or site.endswith(("embedding", ".residual", ".middle", ".crossed"))


def _forward(model: ModelLike, index: int, x: Floats, position: int) -> Floats:
    """An op's result when the stream that it comes from is x."""
    op = model.blueprint.ops[index]
    if _is_stream(op):
        return x
    inputs = [_forward(model, source, x, position) for source in op.inputs]
    return op.value(inputs, TokenContext(model, position, ROPE_LENGTH))


def _linear_map(model: ModelLike, index: int, start: int | None = None) -> Floats:
    """The matrix from an op's result (by default the stream's) to another's: (inputs, outputs)."""
    op = model.blueprint.ops[index]
    if index == start or (start is None and _is_stream(op)):
        return np.eye(op.width, dtype=np.float32)
    total = op.together([_linear_map(model, source, start) for source in op.inputs])
    return op.linear(total, model, None)
