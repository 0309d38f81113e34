"""Which decoder a blueprint describes, as the persistent kernel needs it: its shape and the names of its tensors.

A blueprint fits if it is nothing but an embedding, blocks of Llama's kind (an RMS norm, attention with RoPE, an RMS norm, a
gated SiLU MLP; Qwen's biases and head norms may be there) and a head. Otherwise the reason is one sentence. What the GPU
engine refuses itself (`device.blueprint_reason`) is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.blueprints.blueprint import Blueprint
from glassformer.engine.gpu.persistent.schedule import DecoderShape
from glassformer.ground.errors import ExecutorError
from glassformer.ops.add import Add
from glassformer.ops.attend import Attend
from glassformer.ops.embed import Embed
from glassformer.ops.gate import Gate
from glassformer.ops.heads import ProjectToHeads
from glassformer.ops.linear import LinearMap
from glassformer.ops.norm import Norm
from glassformer.ops.op import Op
from glassformer.ops.rope import Rope
from glassformer.ops.rotate import Rotate
from glassformer.ops.scores import Scores

BLOCK = (
    Norm,
    ProjectToHeads,
    ProjectToHeads,
    Rotate,
    Rotate,
    ProjectToHeads,
    Attend,
    LinearMap,
    Add,
    Norm,
    Gate,
    LinearMap,
    Add,
)
BLOCK_WITH_HEAD_NORMS = (*BLOCK[:3], Norm, Norm, *BLOCK[3:])


@dataclass(frozen=True)
class LayerNames:
    """The names of a block's tensors in the checkpoint."""

    norms: tuple[str, str]  # before attention, before the MLP
    matrices: Mapping[str, tuple[str, ...]]  # the tensors that make each of the schedule's matrices
    head_norms: tuple[str, ...]  # of queries and keys
    qkv_biases: tuple[str, ...]


@dataclass(frozen=True)
class DecoderLayout:
    shape: DecoderShape
    embedding: str
    layers: tuple[LayerNames, ...]
    norm: str
    head: str
    rope: Rope

    def parts(self, matrix: str, layer: int) -> tuple[str, ...]:
        """The names of the tensors that make one of the schedule's matrices."""
        return (self.head,) if matrix == "head" else self.layers[layer].matrices[matrix]

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the RMS norms' weights, in the order of use."""
        return (*(name for layer in self.layers for name in layer.norms), self.norm)


def read_layout(blueprint: Blueprint) -> DecoderLayout:
    """The layout of a blueprint that fits; else an error that says why it does not."""
    ops, family = blueprint.ops, blueprint.model_type
    _require(
        blueprint.head == "causal" and not blueprint.encoder_blocks, "it decodes, and this model is no decoder with a head."
    )
    before = [op for op in ops if op.block is None]
    _require([type(op) for op in before] == [Embed, Norm, Scores], f"{family} has more than blocks between its ends.")
    embed, norm, scores = before
    _require(embed.options["scale"] == 1, f"{family} scales its embeddings.")
    plain = isinstance(scores, Scores) and scores.scale == 1 and scores.softcap is None
    _require(len(scores.weights) == 1 and plain, f"{family} has a head with a bias or a scale.")
    blocks = [[op for op in ops if op.block == index] for index in range(blueprint.blocks)]
    layers = tuple(_read_block(block, family) for block in blocks)
    norms = list(blueprint.ops_of(Norm))
    _require(all(op.options["how"] == "rms" for op in norms), f"{family} has layer norms, and the kernel knows RMS norms.")
    _require(not any(op.options["offset"] for op in norms), f"{family} has norms with an offset.")
    epsilons = {op.options["eps"] for op in norms}
    _require(len(epsilons) == 1, f"{family} has norms with different epsilons.")
    rope, *other_ropes = blueprint.ropes
    _require(not other_ropes, f"{family} has different kinds of RoPE in its layers.")
    plain = rope.partial_rotary_factor == 1 and not rope.interleaved
    _require(plain, f"{family} rotates a part of each head, or neighboring numbers.")
    _require(not rope.depends_on_length, f"{family} has a RoPE whose frequencies depend on the length.")
    query, key = (op.head_shape for op in blocks[0] if isinstance(op, Rotate))
    vocabulary, hidden = scores.weights[0].shape
    shape = DecoderShape(
        blueprint.blocks,
        hidden,
        query[0],
        *key,
        next(op.width for op in blocks[0] if isinstance(op, Gate)),
        vocabulary,
        epsilons.pop(),
        head_norms=bool(layers[0].head_norms),
        qkv_bias=bool(layers[0].qkv_biases),
    )
    return DecoderLayout(shape, _name(embed), layers, _name(norm), _name(scores), rope)


def rotation_table(rope: Rope, positions: int, head_size: int) -> NDArray[np.float32]:
    """(positions, 2, head_size / 2): cosines and sines."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * rope.frequencies(head_size)
    return np.stack([np.cos(angles), np.sin(angles)], 1) * np.float32(rope.scale)


def _read_block(ops: Sequence[Op], family: str) -> LayerNames:
    kinds = tuple(type(op) for op in ops)
    _require(kinds in (BLOCK, BLOCK_WITH_HEAD_NORMS), f"{family}'s blocks are not norm, attention, norm and gated MLP.")
    attention_norm, query, key, *rotation, value, attend, output, _, mlp_norm, gate, down, _ = ops
    options = attend.options
    _require(
        options["causal"] and not options["cross"] and len(attend.inputs) == 3, f"{family}'s attention is not plain causal."
    )
    _require(options["window"] is None, f"{family} has layers that look at the last {options['window']} tokens only.")
    _require(options["scale"] == query.width**-0.5, f"{family} scales its attention scores in its own way.")
    _require(output.options["scale"] == down.options["scale"] == 1, f"{family} scales what is added to the stream.")
    _require(gate.options["how"] == "silu", f"{family}'s MLP has {gate.options['how']}, and the kernel knows SiLU.")
    _require(len(output.weights) == 1, f"{family} has a bias on attention's output projection.")
    _require(len(gate.weights) == 2 and len(down.weights) == 1, f"{family} has biases in its MLP.")
    projections = (query, key, value)
    _require(len({len(op.weights) for op in projections}) == 1, f"{family} has a bias on some of q, k and v only.")
    biases = tuple(op.weights[1].name for op in projections if len(op.weights) == 2)
    head_norms = tuple(_name(op) for op in rotation if isinstance(op, Norm))
    parts = {"qkv": projections, "output": (output,), "down": (down,)}
    matrices = {name: tuple(_name(op) for op in matrix) for name, matrix in parts.items()}
    matrices["gate_up"] = tuple(weight.name for weight in gate.weights)
    return LayerNames((_name(attention_norm), _name(mlp_norm)), matrices, head_norms, biases)


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ExecutorError(f"the persistent kernel does not fit: {reason}")


def _name(op: Op) -> str:
    return op.weights[0].name
