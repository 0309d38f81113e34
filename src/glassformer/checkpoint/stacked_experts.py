"""Experts that a folder's files hold stacked in one tensor, as tensors of their own: everybody else knows only those.

    transformers   `mlp.experts.gate_up_proj` (experts, 2 · inner, hidden): rows of the gate, then of up; `down_proj`
    gpt-oss        the same names, transposed, (experts, hidden, 2 · inner), and columns of gate and up alternate; biases
    Llama 4        `feed_forward.experts.…`, transposed too, but columns of the gate come first; no biases
    Granite        `block_sparse_moe.input_linear.weight`, as transformers' `gate_up_proj`, and `output_linear.weight`
    Gemma 4        as transformers, beside the MLP: `layers.0.experts.gate_up_proj`
    MXFP4          gpt-oss as it was published: `…_blocks` (experts, rows, blocks, 16) of codes, two in a byte, and
                   `…_scales`; rows of gate and up alternate

Nothing is read here: each tensor knows where its numbers lie. MXFP4's blocks are put together as GGUF has them when they
are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from glassformer.checkpoint.stored_tensors import Bytes, Floats, Layout, StoredTensor, Transposed
from glassformer.ground.errors import CheckpointError

STACKED = re.compile(r"(.*\.)?(mlp|feed_forward)\.experts\.(gate_up_proj|down_proj)(_bias|_blocks|_scales)?")
GRANITE = re.compile(r"(.*\.)?(block_sparse_moe)\.(input_linear|output_linear)\.weight()")
GEMMA4 = re.compile(r"(.*\.)?(layers\.\d+)\.experts\.(gate_up_proj|down_proj)()")
PAIR = ("gate_proj", "up_proj")
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
BLOCK, CODE_BYTES = 32, 16  # numbers of a block, and the bytes of their codes


@dataclass(frozen=True)
class EverySecond:
    """Every second column of a transposed matrix, or every second number of a vector."""

    first: int

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[1:], 2 * shape[0])

    def from_stored(self, values: Floats) -> Floats:
        return np.ascontiguousarray(values[..., self.first :: 2].T)

    def to_stored(self, values: Floats) -> Floats:
        raise AssertionError("two tensors make one")  # which `stored_form` of the family does


@dataclass(frozen=True)
class Half:
    """The first half of the columns of a transposed matrix, or the second."""

    index: int

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[1:], 2 * shape[0])

    def from_stored(self, values: Floats) -> Floats:
        return np.ascontiguousarray(np.split(values, 2, -1)[self.index].T)

    def to_stored(self, values: Floats) -> Floats:
        raise AssertionError("two tensors make one")  # which `stored_form` of the family does


@dataclass(frozen=True)
class SplitBlocks(StoredTensor):
    """MXFP4 whose scales are a tensor of their own; its bytes are those that a GGUF file would have."""

    scales: StoredTensor | None = None
    first: int = 0  # of the rows
    step: int = 1

    @property
    def bytes(self) -> Bytes:
        assert self.scales is not None
        rows, blocks = self.shape[0] * self.step, self.shape[1] // BLOCK
        self.file.check()
        region = np.frombuffer(self.file.buffer, np.uint8, rows * blocks * CODE_BYTES, self.offset)
        codes = region.reshape(rows, blocks, CODE_BYTES)[self.first :: self.step]
        neighbours = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:2], BLOCK)
        halves = neighbours[..., :CODE_BYTES] | neighbours[..., CODE_BYTES:] << 4
        scales = self.scales.bytes.reshape(rows, blocks, 1)[self.first :: self.step]
        return np.concatenate((scales, halves), -1).reshape(-1)

    def rows(self, indices: range) -> StoredTensor:
        raise AssertionError("has no rows of its own")


def separate_experts(tensors: Mapping[str, StoredTensor], model_type: str) -> dict[str, StoredTensor]:
    """A folder's tensors, those of stacked experts under the names of each."""
    separate: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        match = STACKED.fullmatch(name) or GRANITE.fullmatch(name) or GEMMA4.fullmatch(name)
        if match is None:
            renamed = re.sub(r"\.mlp\.(gate\.)", r".block_sparse_moe.\1", name) if model_type == "mixtral" else name
            separate[renamed] = tensor
            continue
        home, around, which, kind = match.groups(default="")
        which = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}.get(which, which)
        if kind == "_scales":
            continue  # read with the blocks
        if len(tensor.shape) != {"_bias": 2, "_blocks": 4}.get(kind, 3) or not tensor.elements:
            raise CheckpointError(f"{tensor.label} has shape {tensor.shape}, which are no stacked experts. Fetch it again.")
        scales = tensors.get(name.replace("_blocks", "_scales"))
        if kind == "_blocks" and (scales is None or scales.shape != tensor.shape[:3] or tensor.shape[3] != CODE_BYTES):
            raise CheckpointError(f"{tensor.label} has no scales that fit it. Fetch the file again.")
        for index in range(tensor.shape[0]):
            expert = _slice(tensor, index)
            parts = _parts(expert, which, kind, around, model_type, None if scales is None else _slice(scales, index))
            for projection, part in parts.items():
                module = MIXTRAL[projection] if model_type == "mixtral" else projection
                block = "block_sparse_moe" if model_type == "mixtral" else around
                full = f"{home}{block}.experts.{index}.{module}.{'bias' if kind == '_bias' else 'weight'}"
                separate[full] = replace(part, name=full)
    return separate


def _slice(stacked: StoredTensor, index: int) -> StoredTensor:
    """One expert's part of a stacked tensor."""
    size = stacked.size // stacked.shape[0]
    return replace(stacked, shape=stacked.shape[1:], offset=stacked.offset + index * size, size=size)


def _parts(
    expert: StoredTensor, which: str, kind: str, around: str, model_type: str, scales: StoredTensor | None
) -> dict[str, StoredTensor]:
    """What one expert's part of a stacked tensor holds, by projection."""
    names = PAIR if which == "gate_up_proj" else ("down_proj",)
    if kind == "_blocks":
        rows, columns = expert.shape[0] // len(names), expert.shape[1] * BLOCK
        packed = SplitBlocks(
            expert.name, "MXFP4", (rows, columns), expert.file, expert.offset, rows * columns // BLOCK * (CODE_BYTES + 1),
            scales=scales, step=len(names),
        )  # fmt: skip
        return {name: replace(packed, first=first) for first, name in enumerate(names)}
    if model_type == "gpt_oss" or around == "feed_forward":
        if which == "down_proj":
            layout: Layout | None = None if kind else Transposed()
            return {"down_proj": replace(expert, shape=expert.shape if kind else expert.shape[::-1], layout=layout)}
        shape = (expert.shape[-1] // 2, *expert.shape[:-1])
        kind_of = Half if around == "feed_forward" else EverySecond
        return {name: replace(expert, shape=shape, layout=kind_of(first)) for first, name in enumerate(names)}
    rows = expert.shape[0] // len(names)
    return {name: expert.rows(range(first * rows, (first + 1) * rows)) for first, name in enumerate(names)}
