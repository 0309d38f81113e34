"""Which decoder a blueprint describes, as the persistent kernel needs it: its shape and the names of its tensors.

A blueprint fits if it is nothing but an embedding, blocks of Llama's kind (an RMS norm, attention with RoPE, an RMS norm, a
gated SiLU MLP; Qwen's biases and head norms may be there) and a head. Otherwise the reason is one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.blueprints.blueprint import Blueprint
from glassformer.engine.gpu.persistent.schedule import DecoderShape
from glassformer.ops.op import Op
from glassformer.ops.rope import Rope

BLOCK = ("norm", "heads", "heads", "rotate", "rotate", "heads", "attend", "linear", "add", "norm", "gate", "linear", "add")
BLOCK_WITH_HEAD_NORMS = (*BLOCK[:3], "norm", "norm", *BLOCK[3:])


class DoesNotFit(Exception):
    """The reason why a blueprint is not for the persistent kernel; the engine then runs its separate kernels."""


@dataclass(frozen=True)
class LayerNames:
    """The names of a block's tensors in the checkpoint."""

    attention_norm: str
    query: str
    key: str
    value: str
    output: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    head_norms: tuple[str, ...] = ()  # of queries and keys
    qkv_biases: tuple[str, ...] = ()

    def parts(self, matrix: str) -> tuple[str, ...]:
        """The tensors that make one of the schedule's matrices."""
        return {
            "qkv": (self.query, self.key, self.value),
            "output": (self.output,),
            "gate_up": (self.gate, self.up),
            "down": (self.down,),
        }[matrix]


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
        return (self.head,) if matrix == "head" else self.layers[layer].parts(matrix)

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the RMS norms' weights, in the order of use."""
        return (*(name for layer in self.layers for name in (layer.attention_norm, layer.mlp_norm)), self.norm)


def read_layout(blueprint: Blueprint) -> DecoderLayout:
    """The layout of a blueprint that fits; else DoesNotFit is raised."""
    ops, family = blueprint.ops, blueprint.model_type
    _require(
        blueprint.head == "causal" and not blueprint.encoder_blocks, "it decodes, and this model is no decoder with a head."
    )
    before = [op for op in ops if op.block is None]
    _require([op.kind for op in before] == ["embed", "norm", "scores"], f"{family} has more than blocks between its ends.")
    embed, norm, scores = before
    _require(embed.options["scale"] == 1, f"{family} scales its embeddings.")
    _require(len(scores.weights) == 1 and not scores.options, f"{family} has a head with a bias or a scale.")
    blocks = [[op for op in ops if op.block == number] for number in range(blueprint.blocks)]
    layers = tuple(_read_block(block, family) for block in blocks)
    norms = [op for op in ops if op.kind == "norm"]
    _require(all(op.options["how"] == "rms" for op in norms), f"{family} has layer norms, and the kernel knows RMS norms.")
    _require(not any(op.options["offset"] for op in norms), f"{family} has norms with an offset.")
    epsilons = {op.options["eps"] for op in norms}
    _require(len(epsilons) == 1, f"{family} has norms with different epsilons.")
    ropes = list({id(op.options["rope"]): op.options["rope"] for op in ops if op.kind == "rotate"}.values())
    _require(all(rope == ropes[0] for rope in ropes), f"{family} has different kinds of RoPE in its layers.")
    _require(not ropes[0].depends_on_length, f"{family} has a RoPE whose frequencies depend on the length.")
    _require(ropes[0].partial_rotary_factor == 1 and not ropes[0].interleaved, f"{family} rotates its heads in its own way.")
    query, key = (op.shape for op in blocks[0] if op.kind == "rotate")
    vocabulary, hidden = scores.weights[0].shape
    shape = DecoderShape(
        blueprint.blocks,
        hidden,
        _size(query[1]),
        _size(key[1]),
        _size(query[3]),
        _size(next(op.shape[-1] for op in blocks[0] if op.kind == "gate")),
        vocabulary,
        epsilons.pop(),
        head_norms=bool(layers[0].head_norms),
        qkv_bias=bool(layers[0].qkv_biases),
    )
    return DecoderLayout(shape, _name(embed), layers, _name(norm), _name(scores), ropes[0])


def rotation_table(rope: Rope, positions: int, head_size: int) -> NDArray[np.float32]:
    """(positions, 2, head_size / 2): cosines and sines."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * rope.frequencies(head_size)
    return np.stack([np.cos(angles), np.sin(angles)], 1) * np.float32(rope.scale)


def _read_block(ops: list[Op], family: str) -> LayerNames:
    kinds = tuple(op.kind for op in ops)
    _require(kinds in (BLOCK, BLOCK_WITH_HEAD_NORMS), f"{family}'s blocks are not norm, attention, norm and gated MLP.")
    attention_norm, query, key, *rotation, value, attend, output, _, mlp_norm, gate, down, _ = ops
    options = attend.options
    _require(
        options["causal"] and not options["cross"] and len(attend.inputs) == 3, f"{family}'s attention is not plain causal."
    )
    _require(options["window"] is None, f"{family} has layers that look at the last {options['window']} tokens only.")
    _require(options["scale"] == _size(query.shape[3]) ** -0.5, f"{family} scales its attention scores in its own way.")
    _require(options["softcap"] is None, f"{family} caps its attention scores softly.")
    _require(output.options["scale"] == down.options["scale"] == 1, f"{family} scales what is added to the stream.")
    _require(gate.options["how"] == "silu", f"{family}'s MLP has {gate.options['how']}, and the kernel knows SiLU.")
    _require(len(output.weights) == 1, f"{family} has a bias on attention's output projection.")
    _require(len(gate.weights) == 2 and len(down.weights) == 1, f"{family} has biases in its MLP.")
    projections = (query, key, value)
    _require(len({len(op.weights) for op in projections}) == 1, f"{family} has a bias on some of q, k and v only.")
    biases = tuple(op.weights[1].name for op in projections if len(op.weights) == 2)
    head_norms = tuple(_name(op) for op in rotation if op.kind == "norm")
    gate_name, up_name = (weight.name for weight in gate.weights)
    q, k, v = (_name(op) for op in projections)
    return LayerNames(
        _name(attention_norm), q, k, v, _name(output), _name(mlp_norm), gate_name, up_name, _name(down), head_norms, biases
    )  # fmt: skip


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise DoesNotFit(f"the persistent kernel does not fit: {reason}")


def _name(op: Op) -> str:
    return op.weights[0].name


def _size(size: Any) -> int:
    assert isinstance(size, int), size
    return size
